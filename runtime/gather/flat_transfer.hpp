// The packed gather of flat shards: bytes that the ranks own of many matrices, of any formats, go
// from the matrices' buffers to one payload, and from the payloads of all ranks to the buffers. One
// launch each, over a table that is made once (runtime/gather/flat_payloads.hpp).
#pragma once

#include <cstdint>

#include "runtime/plugin/table.h"

namespace narrowcast {

// What lies ahead of an element on the lines of a stored buffer, in bytes, or in cells: `before` on
// lines above `turn`, `at` on that line, `after` on those below.
struct Front {
  int64_t turn, before, at, after;
};

// What one rank owns of one buffer: on each line the bytes between two fronts. In the payload they
// follow each other line after line.
struct FlatPiece {
  uint8_t* buffer;       // in the machine's memory
  int64_t payload;       // where the piece begins in the payload, or in those of all ranks
  int64_t line_bytes;    // from one line to the next
  int64_t first, lines;  // lines that hold something of it
  Front begin, end;
  int64_t first_tile;     // as in nc_tensor
  int64_t chunks;         // tiles along a line
  int32_t lines_of_tile;  // 1 where there are several chunks
  int32_t threads;        // of the GPU, to a line; a power of two
};

struct FlatTransfer {
  const FlatPiece* pieces;       // in the machine's memory
  const int32_t* piece_of_tile;  // likewise: a search would take a GPU as long as the tile's bytes
  int64_t tiles;
  uint8_t* payload;  // pack: this rank's, written; unpack: those of all ranks, one after the other
  int32_t unpack;
  int32_t reserved;
  int64_t moved;                 // bytes that all buffers have moved by since the pieces were made
  void* stream;                  // cudaStream_t
  nc_parallel_for parallel_for;  // CPU only; NULL: the calling thread does all
};

// Returns what went wrong, or NULL. The GPU's is NULL if the library was built without CUDA.
using FlatTransferFunction = const char* (*)(const FlatTransfer*);
FlatTransferFunction cpu_flat_transfer();
FlatTransferFunction cuda_flat_transfer();

}  // namespace narrowcast
