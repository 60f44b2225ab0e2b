// Casts and sums of a reduce-scatter on the CPU: a run of a part at a time, in cache.
#pragma once

#include <algorithm>

#include "runtime/launch/cpu_loop.hpp"
#include "runtime/launch/dtype.hpp"
#include "runtime/reduce/part.hpp"
#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cpu_amax.hpp"
#include "runtime/tile/cpu_encode.hpp"
#include "runtime/tile/pack.hpp"

namespace narrowcast::inline NC_VARIANT {

// A run of the part in a slot: whole blocks, but for the last one.
struct PartRun {
  static constexpr int kElements = kLongestRun;
  static int64_t count_of(const nc_parts& parts) { return ceil_div(parts.elements, kElements); }

  int64_t slot, first;
  int count, units;  // elements, and up to whole units

  PartRun(const nc_parts& parts, int64_t number)
      : slot(number / count_of(parts)),
        first(number % count_of(parts) * kElements),
        count(static_cast<int>(std::min<int64_t>(kElements, parts.elements - first))),
        units(static_cast<int>(round_up(count, kUnit))) {}

  // The values of a rank's part, and zeros.
  NC_MACHINE void load(const nc_parts& parts, int64_t rank, float* x) const {
    with_dtype(parts.dtype, [&]<class Type>(Type*) {
      const Type* __restrict values =
          static_cast<const Type*>(parts.values) + rank * parts.elements + first;
      for (int i = 0; i < count; ++i) x[i] = widen(values[i]);
    });
    std::fill(x + count, x + kElements, 0.0f);
  }
};

template <class Sequence>
struct CpuParts {
  using Element = typename Sequence::Element;
  using Bytes = PartBytes<Sequence>;
  static constexpr int kElements = PartRun::kElements, kBlock = Bytes::kBlock;

  template <class Rounding>
  static void cast_of(const nc_parts& parts, int64_t number) {
    const Bytes to(parts);
    const PartRun run(parts, number);
    const int64_t rank = rank_of_slot(parts, run.slot);
    alignas(64) float x[kElements], multiplier[kElements] = {};
    run.load(parts, rank, x);
    for (int begin = 0; begin < run.count; begin += kBlock) {
      const float amax = amax_of(largest_magnitude<kBlock>(x + begin, kMagnitudeMask));
      const auto scale = scale_or_nan(typename Sequence::Rule{}, amax, !is_finite(amax));
      std::fill_n(multiplier + begin, kBlock, scale.multiplier);
      *to.scale(run.slot, run.first + begin) = scale.stored;
    }
    alignas(64) uint8_t codes[kElements];
    encode_run<Element>(x, multiplier, static_cast<int>(round_up(run.count, 16)),
                        rounding_of<Rounding>(parts), rank * parts.elements + run.first, codes);
    pack<Bytes::kBits>(codes, run.units, to.codes(run.slot, run.first));
    if (run.first + run.count == parts.elements) to.zero_gaps(run.slot);
  }

  NC_MACHINE static void decode(const Bytes& from, const PartRun& run, int64_t slot, float* x) {
    alignas(64) uint8_t codes[kElements];
    unpack<Bytes::kBits>(from.codes(slot, run.first), run.units, codes);
    for (int begin = 0; begin < run.count; begin += kBlock) {
      const float multiplier = typename Sequence::Decoder{}(*from.scale(slot, run.first + begin));
      const int end = std::min(begin + kBlock, run.count);
      for (int i = begin; i < end; ++i) x[i] = Element::decode(codes[i]) * multiplier;
    }
  }

  static void add_of(const nc_parts& parts, int64_t number) {
    const Bytes from(parts);
    const PartRun run(parts, number);
    alignas(64) float x[kElements], sum[kElements] = {};
    for (int64_t rank = 0; rank < parts.ranks; ++rank) {
      if (rank == parts.rank) {
        run.load(parts, rank, x);
      } else {
        decode(from, run, rank - (rank > parts.rank ? 1 : 0), x);
      }
      for (int i = 0; i < run.count; ++i) sum[i] += x[i];
    }
    with_dtype(parts.dtype, [&]<class Type>(Type*) {
      Type* __restrict target = static_cast<Type*>(parts.sum) + run.first;
      for (int i = 0; i < run.count; ++i)
        target[i] = narrow<Type>(quotient_of(sum[i], parts.divisor));
    });
  }

  static const char* cast(const nc_parts* parts) {
    const int64_t runs = (parts->ranks - 1) * PartRun::count_of(*parts);
    return parts->stochastic ? cpu_for_each<nc_parts, cast_of<Stochastic>>(parts, runs)
                             : cpu_for_each<nc_parts, cast_of<Nearest>>(parts, runs);
  }
  static const char* add(const nc_parts* parts) {
    return cpu_for_each<nc_parts, add_of>(parts, PartRun::count_of(*parts));
  }
};

}  // namespace narrowcast::inline NC_VARIANT
