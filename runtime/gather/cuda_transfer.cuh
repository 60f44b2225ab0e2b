// Moves on the GPU: many weights in one launch, a thread block for some of a target's words.
#pragma once

#include <cstdint>

#include "runtime/gather/wires.hpp"
#include "runtime/launch/find_tensor.hpp"

namespace narrowcast::inline NC_VARIANT {

// They travel as the kernel's parameter, of which every GPU takes 4 KB: nothing is allocated, and
// nothing is copied.
struct MoveBatch {
  static constexpr int64_t kMost = 31;
  Move move[kMost];
  int64_t count, tiles;
};
static_assert(sizeof(MoveBatch) <= 4096);

// Neighbouring threads write neighbouring words. All of a thread's words are read before the first
// is written, so that many reads are on their way.
struct WordTiles {
  static constexpr int kThreads = 256, kEach = 4;
  static constexpr int64_t kWords = kThreads * kEach;

  static int64_t count(const Move& move) { return ceil_div(move.words, kWords); }

  template <class Word>
  static __device__ __forceinline__ Word read(const Move& move, int64_t at) {
    const int64_t row = floor_div(at, move.columns), column = at - row * move.columns;
    if (row >= move.row.used || column >= move.column.used) return Word{};
    return *reinterpret_cast<const Word*>(move.from + move.row.offset(row) +
                                          move.column.offset(column));
  }

  template <class Word>
  static __device__ __forceinline__ void run(const Move& move, int64_t tile) {
    const int64_t first = tile * kWords + threadIdx.x;
    Word words[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = first + i * kThreads;
      if (at < move.words) words[i] = read<Word>(move, at);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = first + i * kThreads;
      if (at < move.words) reinterpret_cast<Word*>(move.to)[at] = words[i];
    }
  }
};

static __global__ void __launch_bounds__(WordTiles::kThreads)
    move_kernel(const __grid_constant__ MoveBatch batch) {
  const Move move = batch.move[find_by_tile(batch.move, batch.count, blockIdx.x)];
  const int64_t tile = blockIdx.x - move.first_tile;
  switch (move.word) {
    case 16:
      return WordTiles::run<uint4>(move, tile);
    case 8:
      return WordTiles::run<uint64_t>(move, tile);
    case 4:
      return WordTiles::run<uint32_t>(move, tile);
    case 2:
      return WordTiles::run<uint16_t>(move, tile);
    default:
      return WordTiles::run<uint8_t>(move, tile);
  }
}

inline const char* launch_moves(const MoveBatch& batch, void* stream) {
  if (batch.count == 0) return nullptr;
  if (batch.tiles > INT32_MAX)
    return "the transfer has more tiles than a CUDA grid can hold (2^31 - 1): split it";
  move_kernel<<<static_cast<unsigned>(batch.tiles), WordTiles::kThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(batch);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// nc_machine.pack and unpack.
template <class Gather, class Wire>
const char* cuda_transfer(const nc_transfer* transfer) {
  MoveBatch batch;
  batch.count = batch.tiles = 0;
  const char* fault = nullptr;
  const auto launch = [&] {
    const char* result = launch_moves(batch, transfer->stream);
    if (fault == nullptr) fault = result;
    batch.count = batch.tiles = 0;
  };
  for_each_move<Gather, Wire>(*transfer, [&](const Move& move) {
    const int64_t tiles = WordTiles::count(move);
    if (batch.count == MoveBatch::kMost || batch.tiles + tiles > INT32_MAX) launch();
    batch.move[batch.count] = move;
    batch.move[batch.count++].first_tile = batch.tiles;
    batch.tiles += tiles;
  });
  launch();
  return fault;
}

}  // namespace narrowcast::inline NC_VARIANT
