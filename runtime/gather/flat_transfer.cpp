// Packed gathers on the CPU: runs of bytes, on the caller's threads.
#include "runtime/gather/flat_transfer.hpp"

#include <cstring>

#include "runtime/gather/flat_tiles.hpp"
#include "runtime/launch/cpu_loop.hpp"

namespace narrowcast {
namespace {

void move_tile(const FlatTransfer& transfer, int64_t index) {
  const FlatPiece& piece = transfer.pieces[transfer.piece_of_tile[index]];
  const FlatTile tile = flat_tile(piece, index);
  for (int64_t line = tile.line; line < tile.end; ++line) {
    const FlatCopy copy = flat_copy(transfer, piece, line, tile.chunk);
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  }
}

const char* flat_transfer(const FlatTransfer* transfer) {
  return cpu_for_each<FlatTransfer, move_tile>(transfer, transfer->tiles);
}

}  // namespace

FlatTransferFunction cpu_flat_transfer() { return &flat_transfer; }

#if defined(NC_WITH_CUDA)
namespace cuda {
const char* flat_transfer(const FlatTransfer* transfer);
}
FlatTransferFunction cuda_flat_transfer() { return &cuda::flat_transfer; }
#else
FlatTransferFunction cuda_flat_transfer() { return nullptr; }
#endif

}  // namespace narrowcast
