// The kernels over the tiles of casts and updates. Tables number strips: kStripTiles tiles, one
// below the other.
#pragma once

#include "runtime/launch/cuda_actions.cuh"
#include "runtime/launch/cuda_full.cuh"
#include "runtime/launch/cuda_whole.cuh"
#include "runtime/launch/find_tensor.hpp"

namespace narrowcast::inline NC_VARIANT {

// Which tiles of which strip a thread block has.
struct BlockTiles {
  int64_t strip;
  int first, count;
};

// Strips come in the order of their numbers, but the last ones first: there a flat shard ends,
// whose edge takes longer than other tiles.
inline constexpr int kStripsAhead = 256;
// Tiles of the strips that then come last have a block each, and so do all of a small launch:
// whole strips would leave multiprocessors idle at the end.
inline constexpr int kStripsInTiles = 128;

template <bool kByStrips>
NC_EVERYWHERE int64_t whole_strips(int64_t strips) {
  return kByStrips && strips > 2 * kStripsInTiles ? strips - kStripsInTiles : 0;
}

template <int kStripTiles, bool kByStrips>
int64_t tile_blocks(int64_t strips) {
  return strips * kStripTiles - whole_strips<kByStrips>(strips) * (kStripTiles - 1);
}

template <int kStripTiles, bool kByStrips>
__device__ __forceinline__ BlockTiles tiles_of_block(int64_t all_strips) {
  const int strips = static_cast<int>(all_strips), block = static_cast<int>(blockIdx.x);
  const int wholes = static_cast<int>(whole_strips<kByStrips>(strips)), tile = block - wholes;
  const bool is_whole = tile < 0;
  const int place = is_whole ? block : wholes + tile / kStripTiles;
  const int strip = place - lesser(strips, kStripsAhead);
  return {strip < 0 ? strip + strips : strip, is_whole ? 0 : tile % kStripTiles,
          is_whole ? kStripTiles : 1};
}

// The shared memory of a block, by its name and not by a pointer, which might lead anywhere.
template <class Sequence, class Action>
struct TileShared {
  static constexpr bool kByStrips = Action::kByStrips && Sequence::kStripTiles > 1;
  using BlockStrip = Strip<Sequence, kByStrips ? Sequence::kStripTiles : 1>;
  template <Owned kOwned>
  using Place = CudaPlace<BlockStrip::kWarps, kOwned>;

  static_assert(sizeof(BlockStrip) + sizeof(CudaEntry) <= 48 * 1024,
                "a strip's codes and scales do not fit the shared memory of a thread block");

  __device__ __forceinline__ static CudaEntry& entry() {
    __shared__ CudaEntry entry;
    return entry;
  }
  __device__ __forceinline__ static BlockStrip& strip() {
    __shared__ BlockStrip strip;
    return strip;
  }
};

// Works through kTiles tiles of the block's strip, the first of them at `place`, and then writes
// what they left there.
template <class Sequence, class Action, int kTiles, class Place>
__device__ __forceinline__ void run_tiles(const Place& place, const nc_launch& launch) {
  using Shared = TileShared<Sequence, Action>;
  using Tile = CudaTile<typename Shared::BlockStrip, Place::kOwned, Action::kKeepsNonfinite>;
  const CudaEntry& entry = Shared::entry();
#pragma unroll 1
  for (int i = 0; i < kTiles; ++i) {
    Tile tile(place.below(i), Shared::strip(), i);
    Action::template run<Sequence>(tile, launch, entry);
  }
  if constexpr (Action::template kCasts<Sequence>) {
    __syncthreads();
    Tile(place, Shared::strip(), 0)
        .template write_strip<kTiles>(typename Sequence::TensorBuffers(entry.tensor));
  }
}

template <class Sequence, class Action, int kTiles>
__device__ __forceinline__ void run_full(const nc_launch& launch, Extent origin, bool is_first) {
  using Place = typename TileShared<Sequence, Action>::template Place<Owned::kAll>;
  const nc_tensor& tensor = TileShared<Sequence, Action>::entry().tensor;
  run_tiles<Sequence, Action, kTiles>(
      Place({tensor.rows, tensor.columns}, origin, Part(tensor, launch, Action::kCollects),
            {0, Place::kRows}, is_first, /*has_words=*/true),
      launch);
}

// What begins in words beside a tensor's value, state and bytes: the gradient and, where there are
// any, the residuals; the bits of both addresses in one.
template <class Action>
__device__ __forceinline__ const void* read_beside(const nc_launch& launch,
                                                   const CudaEntry& entry) {
  const void* grad = grad_of(launch, entry);
  if constexpr (!Action::kHasResiduals) return grad;
  return reinterpret_cast<const void*>(reinterpret_cast<uint64_t>(grad) |
                                       reinterpret_cast<uint64_t>(entry.tensor.residual));
}

// The edge of a matrix, or of a flat shard.
template <class Sequence, class Action>
__device__ __forceinline__ void run_edge(const nc_launch& launch, Extent origin, bool is_first) {
  using Shared = TileShared<Sequence, Action>;
  const CudaEntry& entry = Shared::entry();
  const nc_tensor& tensor = entry.tensor;
  const Extent matrix{tensor.rows, tensor.columns};
  const Part part(tensor, launch, Action::kCollects);
  const bool in_words =
      whole_words(tensor, read_beside<Action>(launch, entry), kIsTransposed<Sequence>);
  const auto run = [&]<Owned kOwned>(TileRows rows, bool has_words) {
    using Place = typename Shared::template Place<kOwned>;
    run_tiles<Sequence, Action, 1>(Place(matrix, origin, part, rows, is_first, has_words), launch);
  };
  if constexpr (Action::kByStrips) {
    TileRows rows{0, -1};
    if (in_words)
      rows = own_rows<Sequence::kTileRows, kWarpColumns>(part, matrix, origin,
                                                         thread_number() % kWarpSize);
    if (rows.end >= 0) return run.template operator()<Owned::kRows>(rows, true);
  }
  run.template operator()<Owned::kSome>({}, in_words && (part.begin | part.end) % 4 == 0);
}

// Where registers are few, the code of edges would have the compiler keep what it needs in memory,
// throughout the kernel. In a function of its own it takes its registers when it comes.
template <class Sequence, class Action>
__device__ __noinline__ void run_apart(const nc_launch& launch, Extent origin, bool is_first) {
  if constexpr (TileShared<Sequence, Action>::BlockStrip::kTiles > 1) {
    const CudaEntry& entry = TileShared<Sequence, Action>::entry();
    if (is_full(entry.tensor, read_beside<Action>(launch, entry), origin,
                {Sequence::kTileRows, kWarpColumns}, kIsTransposed<Sequence>))
      return run_full<Sequence, Action, 1>(launch, origin, is_first);
  }
  run_edge<Sequence, Action>(launch, origin, is_first);
}

template <class Sequence, class Action, int kMinBlocks>
__global__ void __launch_bounds__(Sequence::kTileRows / kThreadRows * kWarpSize, kMinBlocks)
    tile_kernel(const __grid_constant__ CudaLaunch parameters) {
  using Shared = TileShared<Sequence, Action>;
  constexpr int kRows = Sequence::kTileRows, kStripTiles = Sequence::kStripTiles;
  constexpr int kTiles = Shared::BlockStrip::kTiles;
  const nc_launch& launch = parameters.launch;
  CudaEntry& entry = Shared::entry();
  const BlockTiles own = tiles_of_block<kStripTiles, Shared::kByStrips>(launch.tiles);
  if (!load_entry</*kOfTile=*/true>(parameters, entry, own.strip)) return;
  const nc_tensor& tensor = entry.tensor;
  Extent origin = tile_origin(tensor, own.strip, kRows * kStripTiles, kWarpColumns);
  origin.rows += own.first * kRows;
  bool is_first = own.strip == tensor.first_tile && own.first == 0;
  const int count = kTiles == 1 ? 1 : own.count;
  const int64_t end_row = tensor.end_row == 0 ? tensor.rows : tensor.end_row;
  if (count == kTiles && origin.rows + (kTiles - 1) * kRows < end_row &&
      is_full(tensor, read_beside<Action>(launch, entry), origin, {kTiles * kRows, kWarpColumns},
              kIsTransposed<Sequence>))
    return run_full<Sequence, Action, kTiles>(launch, origin, is_first);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const bool is_visited =
        origin.rows < end_row && (origin.rows + kRows) * tensor.columns > tensor.before;
    if (is_visited || is_first) {
      if (i > 0) __syncthreads();  // what the strip held may still be read
      run_apart<Sequence, Action>(launch, origin, is_first);
    }
    origin.rows += kRows;
    is_first = false;
  }
}

template <class Sequence, class Action, int kMinBlocks>
const char* launch_tiles_of(const nc_launch* launch) {
  constexpr bool kByStrips = TileShared<Sequence, Action>::kByStrips;
  return launch_blocks<tile_kernel<Sequence, Action, kMinBlocks>>(
      launch, tile_blocks<Sequence::kStripTiles, kByStrips>(launch->tiles),
      Sequence::kTileRows / kThreadRows * kWarpSize);
}

template <class Sequence>
inline constexpr Extent kCastTile{Sequence::kTileRows, kWarpColumns};

template <class Sequence, class Action, int kMinBlocks>
__global__ void __launch_bounds__(Sequence::kTileRows / kThreadRows * kWarpSize, kMinBlocks)
    whole_cast_kernel(const __grid_constant__ CudaWhole whole) {
  __shared__ Strip<Sequence, 1> strip;
  const nc_launch& launch = whole.launch;
  const nc_tensor& tensor = whole.tensor;
  if (is_stopped(launch)) return;
  using Tile = CudaTile<Strip<Sequence, 1>, Owned::kAll, Action::kKeepsNonfinite>;
  Tile tile({{tensor.rows, tensor.columns},
             block_origin(kCastTile<Sequence>),
             Part(tensor, launch, /*collects=*/false),
             {0, Sequence::kTileRows},
             blockIdx.x == 0 && blockIdx.y == 0,
             /*has_words=*/true},
            strip, 0);
  load_value(tile, tensor, launch.source_bf16);
  const float amax = launch.amax == nullptr ? 0.0f : *launch.amax;
  Action::template cast<Sequence>(tile, tensor, nullptr, amax, /*update=*/false);
  __syncthreads();
  tile.template write_strip<1>(typename Sequence::TensorBuffers(tensor));
}

}  // namespace narrowcast::inline NC_VARIANT
