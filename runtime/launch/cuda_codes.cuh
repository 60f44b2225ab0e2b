// Decoding, and deriving a usage from the other, on the GPU: kernels of their own, because what a
// cast holds in a thread, and how many threads it leaves room for, would keep memory half idle
// here.
#pragma once

#include <algorithm>

#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/cuda_full.cuh"
#include "runtime/launch/cuda_whole.cuh"
#include "runtime/launch/dtype.hpp"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/launch/inputs.hpp"
#include "runtime/tile/cuda_code_tile.cuh"

namespace narrowcast::inline NC_VARIANT {

// Threads that a multiprocessor holds: of the processors for data centers more than of the others.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1100))
inline constexpr int kResidentThreads = 2048;
#else
inline constexpr int kResidentThreads = 1536;
#endif

template <Layout kLayout, class Tile>
constexpr int stage_bytes() {
  return kLayout.transposed ? CodeStage<kLayout, Tile>::kBytes : 1;
}

// Of all scales that may meet there, or their multipliers, each of so many bytes.
template <Layout kLayout, class Tile>
constexpr int scale_stage_bytes(int bytes) {
  if constexpr (scales_meet<kLayout, Tile>()) {
    using Runs = ScaleRuns<kLayout, Tile>;
    return Runs::kRuns * Runs::kRunLength * bytes;
  } else {
    return 1;
  }
}

// Calls action(tile) for the block's tile: a full one, or one that checks every byte. kLayout: of
// the bytes that may be transposed.
template <class Sequence, Layout kLayout, template <bool> class Tile, class Action>
__device__ __forceinline__ void with_code_tile(const nc_tensor& tensor, uint8_t* stage,
                                               uint8_t* scale_stage, const Action& action) {
  constexpr int kRows = Tile<true>::kRows, kColumns = Tile<true>::kColumns;
  const Extent matrix{tensor.rows, tensor.columns};
  const Extent origin = tile_origin(tensor, blockIdx.x, kRows, kColumns);
  if (has_run_words<kLayout>(matrix) &&
      is_full(tensor, nullptr, origin, {kRows, kColumns}, kIsTransposed<Sequence>)) {
    action(Tile<true>(matrix, origin, stage, scale_stage));
  } else {
    action(Tile<false>(matrix, origin, stage, scale_stage));
  }
}

// ---- decoding: a thread writes 16 bytes of each of its rows, or twice as many ----

// Rows of a tile: where bytes are transposed so many that their runs fill the 32 bytes that memory
// reads at least, whatever their width, and cache lines if elements have 8 bits.
template <class Sequence, Layout kLayout>
constexpr int code_rows() {
  constexpr int kTransposed = 128;
  static_assert(kTransposed % Sequence::kTileRows == 0);
  return kLayout.transposed ? kTransposed : Sequence::kTileRows;
}

template <class Sequence, bool kColumnwise>
struct Decoding {
  static constexpr Layout kLayout = kColumnwise ? Sequence::kColumnwise : Sequence::kRowwise;
  static constexpr Extent kTile{code_rows<Sequence, kLayout>(), kWarpColumns};
  // Of a column's narrow codes four rows are less than a word. With eight a thread reads words; it
  // has more registers then, which leave room for fewer threads.
  static constexpr bool kTall = kLayout.transposed && kLayout.element_bits < 8;
  static constexpr int kElements = kTall ? 64 : 32;  // of a thread
  static constexpr int kResident = kTall ? std::min(1280, kResidentThreads) : kResidentThreads;
  template <class Type>
  struct Of {
    static constexpr int kAcross = kTall ? 8 : 16 / sizeof(Type);
    template <bool kInside>
    using Tile = CodeTile<kTile.rows, kElements / kAcross, kAcross, kInside, Type>;
  };
  using Narrowest = typename Of<float>::template Tile<true>;  // has the most columns of threads
  static constexpr int kThreads = Narrowest::kThreads;
  static constexpr int kBlocks = kResident / kThreads;
  static constexpr int kStageBytes = stage_bytes<kLayout, Narrowest>();
  static constexpr int kScaleStageBytes = scale_stage_bytes<kLayout, Narrowest>(
      kDecodesCheaply<typename Sequence::Decoder> ? kLayout.scale_bytes : sizeof(float));
};

// A tile's codes to values.
template <class Sequence, bool kColumnwise>
struct Decode {
  template <class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_tensor& tensor) {
    const Inputs<> in = decode_inputs<Sequence>(tensor);
    const typename Sequence::TensorBuffers from(tensor);
    if constexpr (kColumnwise) {
      Sequence::decode_columnwise(tile, in, from);
    } else {
      Sequence::decode_rowwise(tile, in, from);
    }
    tile.store_value(tensor.value);
  }
};

template <class Sequence, bool kColumnwise>
__global__ void __launch_bounds__(Decoding<Sequence, kColumnwise>::kThreads,
                                  Decoding<Sequence, kColumnwise>::kBlocks)
    decoding_kernel(const __grid_constant__ CudaLaunch launch) {
  using Decoding = Decoding<Sequence, kColumnwise>;
  alignas(16) __shared__ uint8_t stage[Decoding::kStageBytes];
  alignas(16) __shared__ uint8_t scale_stage[Decoding::kScaleStageBytes];
  __shared__ CudaEntry entry;
  if (!load_entry</*kOfTile=*/true>(launch, entry, blockIdx.x)) return;
  const nc_tensor& tensor = entry.tensor;
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
    with_code_tile<Sequence, Decoding::kLayout, Decoding::template Of<Type>::template Tile>(
        tensor, stage, scale_stage,
        [&](auto tile) { Decode<Sequence, kColumnwise>::run(tile, tensor); });
  });
}

template <class Sequence, bool kColumnwise>
__global__ void __launch_bounds__(Decoding<Sequence, kColumnwise>::kThreads,
                                  Decoding<Sequence, kColumnwise>::kBlocks)
    whole_decoding_kernel(const __grid_constant__ CudaWhole whole) {
  using Decoding = Decoding<Sequence, kColumnwise>;
  alignas(16) __shared__ uint8_t stage[Decoding::kStageBytes];
  alignas(16) __shared__ uint8_t scale_stage[Decoding::kScaleStageBytes];
  const nc_tensor& tensor = whole.tensor;
  if (is_stopped(whole.launch)) return;
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
    using Tile = typename Decoding::template Of<Type>::template Tile<true>;
    Tile tile({tensor.rows, tensor.columns}, block_origin(Decoding::kTile), stage, scale_stage);
    Decode<Sequence, kColumnwise>::run(tile, tensor);
  });
}

template <class Sequence, bool kColumnwise>
const char* run_decoding(const nc_launch* launch) {
  using Decoding = Decoding<Sequence, kColumnwise>;
  if (is_whole(*launch, Decoding::kTile))
    return launch_whole<whole_decoding_kernel<Sequence, kColumnwise>>(launch, Decoding::kTile,
                                                                      Decoding::kThreads);
  return launch_tiles<decoding_kernel<Sequence, kColumnwise>>(launch, Decoding::kThreads);
}

// ---- derivation: a thread has 8 x 8 codes, as many in a row as in a column ----

template <class Sequence>
struct Derivation {
  // Of the bytes that pass through the stage: of those read, those written, or both alike.
  static constexpr Layout kLayout =
      Sequence::kColumnwise.transposed ? Sequence::kColumnwise : Sequence::kRowwise;
  static constexpr Extent kTile{code_rows<Sequence, kLayout>(), kWarpColumns};
  template <bool kInside>
  using Tile = CodeTile<kTile.rows, 8, 8, kInside>;
  static constexpr int kThreads = Tile<true>::kThreads;
  static constexpr int kBlocks = 1024 / kThreads;  // a thread needs registers for its codes
  // Codes pass through the stage, and then the scales of the tile's blocks.
  static constexpr Layout kScales = Sequence::kColumnwise;
  static constexpr int kScaleBytes =
      spans_tensor(kScales)
          ? 1
          : static_cast<int>(Tile<true>::kRows / kScales.block_rows *
                             (Tile<true>::kColumns / kScales.block_columns) * kScales.scale_bytes);
  static constexpr int kScaleStageBytes =
      scale_stage_bytes<Sequence::kRowwise, Tile<true>>(Sequence::kRowwise.scale_bytes);
  static constexpr int kStageBytes = std::max(stage_bytes<kLayout, Tile<true>>(), kScaleBytes);
};

template <class Sequence>
__global__ void __launch_bounds__(Derivation<Sequence>::kThreads, Derivation<Sequence>::kBlocks)
    derivation_kernel(const __grid_constant__ CudaLaunch launch) {
  using Derivation = Derivation<Sequence>;
  alignas(16) __shared__ uint8_t stage[Derivation::kStageBytes];
  alignas(16) __shared__ uint8_t scale_stage[Derivation::kScaleStageBytes];
  __shared__ CudaEntry entry;
  if (!load_entry</*kOfTile=*/true>(launch, entry, blockIdx.x)) return;
  with_code_tile<Sequence, Derivation::kLayout, Derivation::template Tile>(
      entry.tensor, stage, scale_stage, [&](auto tile) {
        Sequence::derive_columnwise(tile, typename Sequence::TensorBuffers(entry.tensor));
      });
}

template <class Sequence>
__global__ void __launch_bounds__(Derivation<Sequence>::kThreads, Derivation<Sequence>::kBlocks)
    whole_derivation_kernel(const __grid_constant__ CudaWhole whole) {
  using Derivation = Derivation<Sequence>;
  alignas(16) __shared__ uint8_t stage[Derivation::kStageBytes];
  alignas(16) __shared__ uint8_t scale_stage[Derivation::kScaleStageBytes];
  const nc_tensor& tensor = whole.tensor;
  if (is_stopped(whole.launch)) return;
  typename Derivation::template Tile<true> tile(
      {tensor.rows, tensor.columns}, block_origin(Derivation::kTile), stage, scale_stage);
  Sequence::derive_columnwise(tile, typename Sequence::TensorBuffers(tensor));
}

template <class Sequence>
const char* run_derivation(const nc_launch* launch) {
  using Derivation = Derivation<Sequence>;
  if (is_whole(*launch, Derivation::kTile))
    return launch_whole<whole_derivation_kernel<Sequence>>(launch, Derivation::kTile,
                                                           Derivation::kThreads);
  return launch_tiles<derivation_kernel<Sequence>>(launch, Derivation::kThreads);
}

}  // namespace narrowcast::inline NC_VARIANT
