// Codes from registers to a data buffer whose rows are the matrix's columns: through shared memory,
// so that the rows of all warps become one run in each stored row.
#pragma once

#include "runtime/tile/cuda_data.cuh"
#include "runtime/tile/cuda_string.cuh"

namespace narrowcast::inline NC_VARIANT {

// Bytes of a column's codes, from byte `first` of the tile's on. Of those that the launch does not
// own entirely it writes whichever hold a code of its own.
template <int kBits, int kBytes, class Place>
__device__ __forceinline__ void store_run(const Place& at, uint8_t* target, uint64_t string,
                                          int first, int column) {
  const auto row_of = [&](int bit) { return (first * 8 + bit) / kBits; };
  const auto owns = [&](int bit) { return at.owns_at(row_of(bit), column); };
  constexpr int kLast = kBytes * 8 - 1;
  if (!at.touches_run(row_of(0), row_of(kLast), column)) return;
  if (owns(0) && owns(kLast)) return store_string<kBytes>(target, string);
#pragma unroll 1
  for (int b = 0; b < kBytes; ++b) {
    if (owns(b * 8) || owns(b * 8 + 7)) target[b] = static_cast<uint8_t>(string >> 8 * b);
  }
}

template <int kBits>
struct ExchangeSlot {
  using Type = uint64_t;
};
template <>
struct ExchangeSlot<4> {
  using Type = uint32_t;
};

// Where a lane's column of a warp's rows waits in shared memory. All columns of a lane lie
// together, permuted by the lane's number: so 32 lanes that write one column each, and 32 threads
// that read a lane's columns, meet 32 different banks.
template <int kWarps>
__device__ __forceinline__ int exchange_slot(int lane, int column, int warp) {
  constexpr int kSlotsOfLane = kThreadColumns * kWarps;
  return lane * kSlotsOfLane + ((column * kWarps + warp) ^ (lane % kSlotsOfLane));
}

// The same for codes of six bits, whose eight are no word: the runs of all warps lie together in
// shared memory, and are written from there as the words that they make up. The columns of a lane
// have a word more than they need, so that lanes meet different banks.
template <Layout kLayout, class Place>
__device__ __forceinline__ void store_exchanged_strings(const Place& at, uint8_t* bytes,
                                                        const uint64_t (&columns)[kThreadColumns]) {
  constexpr int kBits = kLayout.element_bits, kWarps = Place::kWarps;
  constexpr int kHalves = kBits / 2;                   // of a warp's run
  constexpr int kWords = kHalves * kWarps / 2;         // of a column
  constexpr int kPitch = kWords * kThreadColumns + 1;  // of a lane, in words
  static_assert(kWarps % 2 == 0 && kPitch * kWarpSize * 4 <= sizeof(CudaShared<kWarps>::stage));
  uint16_t* halves = reinterpret_cast<uint16_t*>(at.stage) + at.lane * kPitch * 2;
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
      halves[c * kWords * 2 + at.warp * kHalves + h] = static_cast<uint16_t>(columns[c] >> 16 * h);
  }
  __syncthreads();
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  uint8_t* target =
      bytes + element_position(kLayout, at.matrix, at.origin.rows, at.origin.columns).byte;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(at.stage);
#pragma unroll
  for (int i = 0; i < Place::kColumns * kWords / Place::kThreads; ++i) {
    const int index = i * Place::kThreads + thread_number();
    const int column = index / kWords, word = index % kWords;
    const int lane = column / kThreadColumns, own = column % kThreadColumns;
    store_run<kBits, 4>(at, target + column * pitch + word * 4,
                        words[lane * kPitch + own * kWords + word], word * 4, column);
  }
}

// In whole words, where the matrix lets them be.
template <Layout kLayout, class Place, class Codes>
__device__ __forceinline__ void store_exchanged(const Place& at, uint8_t* bytes,
                                                const Codes& codes) {
  constexpr int kBits = kLayout.element_bits, kWarps = Place::kWarps;
  uint64_t columns[kThreadColumns];
  codes.template column_strings<kBits>(columns);
  if constexpr (kBits == 6 && kWarps % 2 == 0)
    return store_exchanged_strings<kLayout>(at, bytes, columns);
  using Slot = typename ExchangeSlot<kBits>::Type;
  Slot* slots = reinterpret_cast<Slot*>(at.stage);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    slots[exchange_slot<kWarps>(at.lane, c, at.warp)] = static_cast<Slot>(columns[c]);
  }
  __syncthreads();
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  const int first = thread_number() / kWarps, warp = thread_number() % kWarps;
  uint8_t* target =
      bytes + element_position(kLayout, at.matrix, at.origin.rows, at.origin.columns + first).byte +
      warp * kBits;
#pragma unroll
  for (int i = 0; i < Place::kColumns / kWarpSize; ++i, target += kWarpSize * pitch) {
    const int column = first + i * kWarpSize;
    const Slot run =
        slots[exchange_slot<kWarps>(column / kThreadColumns, column % kThreadColumns, warp)];
    store_run<kBits, kBits>(at, target, run, warp * kBits, column);
  }
}

// Byte by byte: each thread writes those of its own columns.
template <Layout kLayout, class Place, class Codes>
__device__ __forceinline__ void store_exchanged_bytes(const Place& at, uint8_t* bytes,
                                                      const Codes& codes) {
  constexpr int kBits = kLayout.element_bits;
  uint64_t columns[kThreadColumns];
  codes.template column_strings<kBits>(columns);
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    uint8_t* target = bytes + element_position(kLayout, at.matrix, at.row(), at.column() + c).byte;
#pragma unroll
    for (int b = 0; b < kBits; ++b) {
      if (at.owns(first_in_byte<kBits>(b), c) || at.owns(last_in_byte<kBits>(b), c))
        target[b] = static_cast<uint8_t>(columns[c] >> 8 * b);
    }
  }
}

}  // namespace narrowcast::inline NC_VARIANT
