// Codes from registers to the data buffers, as stored rows or, exchanged, as stored columns.
#pragma once

#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_place.cuh"
#include "runtime/tile/cuda_string.cuh"

namespace narrowcast::inline NC_VARIANT {

// Four packed codes, at a multiple of 4 elements of a stored row.
template <int kBits>
__device__ __forceinline__ void store_word(uint8_t* target, uint32_t packed, int lane) {
  if constexpr (kBits == 8) *reinterpret_cast<uint32_t*>(target) = packed;
  if constexpr (kBits == 4) *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(packed);
  if constexpr (kBits == 6) {
    // Four lanes hold 12 bytes: the first three of them write a word each, filled up from the next
    // lane.
    const int part = lane % 4;
    const uint32_t next = __shfl_down_sync(~0u, packed, 1);
    if (part < 3)
      *reinterpret_cast<uint32_t*>(target + part) = packed >> 8 * part | next << (24 - 8 * part);
  }
}

// Byte b of a run of packed codes: whoever has an element of it writes all of it.
template <int kBits>
__device__ __forceinline__ constexpr int first_in_byte(int b) {
  return b * 8 / kBits;
}
template <int kBits>
__device__ __forceinline__ constexpr int last_in_byte(int b) {
  return (b * 8 + 7) / kBits;
}

template <Layout kLayout, class Place>
__device__ __forceinline__ void store_rows(const Place& at, uint8_t* bytes,
                                           const CudaCodes& codes) {
  constexpr int kBits = kLayout.element_bits;
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  uint8_t* target = bytes + element_position(kLayout, at.matrix, at.row(), at.column()).byte;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r, target += pitch) {
    const uint32_t packed = pack4<kBits>(codes.row[r]);
    if constexpr (Place::kFull) {
      store_word<kBits>(target, packed, at.lane);
      continue;
    }
    if (kBits != 6 && at.has_words) {
      if (at.owns(r, 0)) store_word<kBits>(target, packed, at.lane);
      continue;
    }
#pragma unroll
    for (int b = 0; b < kBits / 2; ++b) {
      if (at.owns(r, first_in_byte<kBits>(b)) || at.owns(r, last_in_byte<kBits>(b)))
        target[b] = static_cast<uint8_t>(packed >> 8 * b);
    }
  }
}

// Eight codes of each of the thread's four columns, packed: kBits bytes.
template <int kBits>
__device__ __forceinline__ void exchange(const CudaCodes& codes,
                                         uint64_t (&columns)[kThreadColumns]) {
  uint32_t low[4] = {codes.row[0], codes.row[1], codes.row[2], codes.row[3]};
  uint32_t high[4] = {codes.row[4], codes.row[5], codes.row[6], codes.row[7]};
  exchange4x4(low[0], low[1], low[2], low[3]);
  exchange4x4(high[0], high[1], high[2], high[3]);
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    columns[c] = pack4<kBits>(low[c]) | static_cast<uint64_t>(pack4<kBits>(high[c])) << 4 * kBits;
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
                                                        const CudaCodes& codes) {
  constexpr int kBits = kLayout.element_bits, kWarps = Place::kWarps;
  constexpr int kHalves = kBits / 2;                   // of a warp's run
  constexpr int kWords = kHalves * kWarps / 2;         // of a column
  constexpr int kPitch = kWords * kThreadColumns + 1;  // of a lane, in words
  static_assert(kWarps % 2 == 0 && kPitch * kWarpSize * 4 <= sizeof(CudaShared<kWarps>::stage));
  uint64_t columns[kThreadColumns];
  exchange<kBits>(codes, columns);
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
    reinterpret_cast<uint32_t*>(target + column * pitch)[word] =
        words[lane * kPitch + own * kWords + word];
  }
}

// Through shared memory, so that the rows of all warps become one run in each stored row.
template <Layout kLayout, class Place>
__device__ __forceinline__ void store_exchanged(const Place& at, uint8_t* bytes,
                                                const CudaCodes& codes) {
  constexpr int kBits = kLayout.element_bits;
  constexpr int kWarps = Place::kWarps;
  if constexpr (kBits == 6 && kWarps % 2 == 0)
    return store_exchanged_strings<kLayout>(at, bytes, codes);
  using Slot = typename ExchangeSlot<kBits>::Type;
  uint64_t columns[kThreadColumns];
  exchange<kBits>(codes, columns);
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
    if constexpr (kBits == 6) {
#pragma unroll
      for (int half = 0; half < 3; ++half) {
        reinterpret_cast<uint16_t*>(target)[half] = static_cast<uint16_t>(run >> 16 * half);
      }
    } else {
      *reinterpret_cast<Slot*>(target) = run;
    }
  }
}

// At the edge of the matrix, each thread writes the bytes of its own columns.
template <Layout kLayout, class Place>
__device__ __forceinline__ void store_exchanged_bytes(const Place& at, uint8_t* bytes,
                                                      const CudaCodes& codes) {
  constexpr int kBits = kLayout.element_bits;
  uint64_t columns[kThreadColumns];
  exchange<kBits>(codes, columns);
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    uint8_t* target = bytes + element_position(kLayout, at.matrix, at.row(), at.column() + c).byte;
    if (at.has_words && at.owns(0, c) && at.owns(kThreadRows - 1, c)) {
      store_string<kBits>(target, columns[c]);
      continue;
    }
#pragma unroll
    for (int b = 0; b < kBits; ++b) {
      if (at.owns(first_in_byte<kBits>(b), c) || at.owns(last_in_byte<kBits>(b), c))
        target[b] = static_cast<uint8_t>(columns[c] >> 8 * b);
    }
  }
}

}  // namespace narrowcast::inline NC_VARIANT
