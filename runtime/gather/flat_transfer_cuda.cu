// Packed gathers on the GPU: a thread block for a tile, groups of its threads for its lines. All
// writes are words of 16 bytes but for a line's ends, wherever the bytes come from: where source
// and target lie differently within words, a word is put together from two.
#include <cuda_runtime_api.h>

#include "runtime/gather/flat_tiles.hpp"
#include "runtime/tile/cuda_memory.cuh"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int kThreads = kFlatThreads, kEach = 4;  // words of a thread, on their way together

// Bytes `shift` to before `shift` + 16 of two words: 0 < shift < 16.
__device__ __forceinline__ uint4 joined(const uint4& low, const uint4& high, uint32_t shift) {
  uint32_t part[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  // Selections, for an array that is indexed by a variable would go to memory.
#pragma unroll
  for (int i = 0; i < 6; ++i) part[i] = shift & 8 ? part[i + 2] : part[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) part[i] = shift & 4 ? part[i + 1] : part[i];
  const uint32_t bits = shift % 4 * 8;
  return {__funnelshift_r(part[0], part[1], bits), __funnelshift_r(part[1], part[2], bits),
          __funnelshift_r(part[2], part[3], bits), __funnelshift_r(part[3], part[4], bits)};
}

// All of a thread's words are read before the first is written, so that many reads are on their
// way.
template <class Read>
__device__ __forceinline__ void move_words(uint4* to, int words, int lane, int threads,
                                           const Read& read) {
  for (int first = lane; first < words; first += kEach * threads) {
    uint4 word[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * threads;
      if (at < words) word[i] = read(at);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * threads;
      if (at < words) to[at] = word[i];
    }
  }
}

// By one group of threads. No copy is longer than a chunk. What lies ahead of the first word and
// behind the last is read before the words are, too: short lines would wait for it twice more.
__device__ __forceinline__ void move_run(const FlatCopy& copy, int lane, int threads) {
  constexpr int kWord = kFlatWord;
  static_assert(kWord <= kFlatFewestThreads);  // fewer than a word's bytes are ahead
  const uint8_t* from = in_global_memory(copy.from);
  uint8_t* to = in_global_memory(copy.to);
  int bytes = static_cast<int>(copy.bytes);
  const int aligned = static_cast<int>(-reinterpret_cast<uint64_t>(to) % kWord);
  const int head = aligned < bytes ? aligned : bytes;
  const uint8_t first = lane < head ? from[lane] : 0;
  uint8_t* const first_to = to + lane;
  from += head, to += head, bytes -= head;
  const uint32_t shift = reinterpret_cast<uint64_t>(from) % kWord;
  const uint4* source = reinterpret_cast<const uint4*>(from - shift);
  // Where they are put together, the last one may reach beyond what there is: it is left out.
  int words = bytes / kWord;
  if (shift != 0) words = (bytes + static_cast<int>(shift)) / kWord - 1;
  const int moved = words < 0 ? 0 : words * kWord;
  uint8_t last[2];  // fewer than two words' bytes are behind
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = moved + lane + i * threads;
    if (at < bytes) last[i] = from[at];
  }
  uint4* target = reinterpret_cast<uint4*>(to);
  if (shift == 0) {
    move_words(target, words, lane, threads, [&](int at) { return source[at]; });
  } else {
    move_words(target, words, lane, threads,
               [&](int at) { return joined(source[at], source[at + 1], shift); });
  }
  if (lane < head) *first_to = first;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = moved + lane + i * threads;
    if (at < bytes) to[at] = last[i];
  }
}

__global__ void __launch_bounds__(kThreads, 4)  // with fewer, more registers than the copies need
    flat_transfer_kernel(const __grid_constant__ FlatTransfer transfer) {
  const FlatPiece piece =
      in_global_memory(transfer.pieces)[in_global_memory(transfer.piece_of_tile)[blockIdx.x]];
  const FlatTile tile = flat_tile(piece, blockIdx.x);
  const int threads = piece.threads, lane = static_cast<int>(threadIdx.x) & (threads - 1);
  const int group = static_cast<int>(threadIdx.x) / threads, groups = kThreads / threads;
  for (int64_t line = tile.line + group; line < tile.end; line += groups) {
    const FlatCopy copy = flat_copy(transfer, piece, line, tile.chunk);
    if (copy.bytes > 0) move_run(copy, lane, threads);
  }
}

}  // namespace

const char* flat_transfer(const FlatTransfer* transfer) {
  if (transfer->tiles == 0) return nullptr;
  if (transfer->tiles > INT32_MAX)
    return "the gather has more tiles than a CUDA grid can hold (2^31 - 1): split it";
  flat_transfer_kernel<<<static_cast<unsigned>(transfer->tiles), kThreads, 0,
                         static_cast<cudaStream_t>(transfer->stream)>>>(*transfer);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace narrowcast::inline NC_VARIANT
