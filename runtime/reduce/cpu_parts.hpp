// Casts and sums of a reduce-scatter on the CPU: a run of a part at a time, in cache.
#pragma once

#include <algorithm>
#include <cstring>

#include "runtime/launch/cpu_entry.hpp"
#include "runtime/launch/dtype.hpp"
#include "runtime/reduce/part.hpp"
#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cpu_amax.hpp"
#include "runtime/tile/cpu_encode.hpp"
#include "runtime/tile/pack.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Sequence>
struct CpuParts {
  using Element = typename Sequence::Element;
  using Stored = typename Sequence::ScaleType::Stored;
  static constexpr Layout kLayout = Sequence::kRowwise;
  static constexpr int kBlock = static_cast<int>(kLayout.block_columns);
  static constexpr int kBits = kLayout.element_bits;
  static constexpr int kElements = kLongestRun;  // of a run: whole blocks

  // A run of the part in a slot.
  struct Run {
    PartLayout part;
    int64_t slot, first;
    int count, width;  // elements, and up to whole blocks

    Run(const nc_parts& parts, int64_t number) : part(kLayout, parts.elements) {
      const int64_t runs = ceil_div(parts.elements, kElements);
      slot = number / runs;
      first = number % runs * kElements;
      count = static_cast<int>(std::min<int64_t>(kElements, parts.elements - first));
      width = static_cast<int>(round_up(count, std::max(kBlock, 16)));
    }

    uint8_t* codes(const nc_parts& parts, int64_t of) const {
      return parts.bytes + of * part.bytes + first / kUnit * kBits;
    }
    Stored* scales(const nc_parts& parts, int64_t of) const {
      return reinterpret_cast<Stored*>(parts.bytes + of * part.bytes + part.scales) +
             first / kBlock;
    }
    int whole_units() const { return static_cast<int>(round_up(count, kUnit)); }
  };

  NC_MACHINE static void load(const nc_parts& parts, const Run& run, int64_t rank, float* x) {
    with_dtype(parts.dtype, [&]<class Type>(Type*) {
      const Type* __restrict values =
          static_cast<const Type*>(parts.values) + rank * parts.elements + run.first;
      for (int i = 0; i < run.count; ++i) x[i] = widen(values[i]);
    });
    std::fill(x + run.count, x + run.width, 0.0f);
  }

  template <class Rounding>
  static void cast_of(const nc_parts& parts, int64_t number) {
    const Run run(parts, number);
    const int64_t rank = rank_of_slot(parts, run.slot);
    alignas(64) float x[kElements], multiplier[kElements];
    load(parts, run, rank, x);
    Stored* scales = run.scales(parts, run.slot);
    for (int begin = 0; begin < run.width; begin += kBlock) {
      const float amax = amax_of(largest_magnitude<kBlock>(x + begin, kMagnitudeMask));
      const auto scale = scale_or_nan(typename Sequence::Rule{}, amax, !is_finite(amax));
      std::fill_n(multiplier + begin, kBlock, scale.multiplier);
      if (begin < run.count) scales[begin / kBlock] = scale.stored;
    }
    Rounding rounding{};
    if constexpr (std::is_same_v<Rounding, Stochastic>)
      rounding = {parts.seed, parts.step, first_number(parts, run.part, rank)};
    alignas(64) uint8_t codes[kElements];
    encode_run<Element>(x, multiplier, run.width, rounding, run.first, codes);
    std::fill(codes + run.count, codes + run.width, uint8_t{0});
    pack<kBits>(codes, run.whole_units(), run.codes(parts, run.slot));
    if (run.first + run.count == parts.elements)
      run.part.zero_gaps(parts.bytes + run.slot * run.part.bytes);
  }

  NC_MACHINE static void decode(const nc_parts& parts, const Run& run, int64_t slot, float* x) {
    alignas(64) uint8_t codes[kElements];
    unpack<kBits>(run.codes(parts, slot), run.whole_units(), codes);
    const Stored* scales = run.scales(parts, slot);
    for (int begin = 0; begin < run.count; begin += kBlock) {
      const float multiplier = typename Sequence::Decoder{}(scales[begin / kBlock]);
      const int end = std::min(begin + kBlock, run.count);
      for (int i = begin; i < end; ++i) x[i] = Element::decode(codes[i]) * multiplier;
    }
  }

  static void add_of(const nc_parts& parts, int64_t number) {
    const Run run(parts, number);
    alignas(64) float x[kElements], sum[kElements] = {};
    for (int64_t rank = 0; rank < parts.ranks; ++rank) {
      if (rank == parts.rank) {
        load(parts, run, rank, x);
      } else {
        decode(parts, run, rank - (rank > parts.rank ? 1 : 0), x);
      }
      for (int i = 0; i < run.count; ++i) sum[i] += x[i];
    }
    with_dtype(parts.dtype, [&]<class Type>(Type*) {
      Type* __restrict target = static_cast<Type*>(parts.sum) + run.first;
      for (int i = 0; i < run.count; ++i)
        target[i] = narrow<Type>(quotient_of(sum[i], parts.divisor));
    });
  }

  // Runs kAction(parts, number of a run) for every run of some parts.
  template <void (*kAction)(const nc_parts&, int64_t)>
  static const char* for_each_run(const nc_parts* parts, int64_t count) {
    constexpr auto kBody = [](void* context, int64_t begin, int64_t end) {
      const IeeeArithmetic ieee;
      for (int64_t run = begin; run < end; ++run)
        kAction(*static_cast<const nc_parts*>(context), run);
    };
    void* context = const_cast<nc_parts*>(parts);
    const int64_t runs = count * ceil_div(parts->elements, kElements);
    if (parts->parallel_for == nullptr) {
      kBody(context, 0, runs);
    } else if (runs > 0) {
      parts->parallel_for(runs, kBody, context);
    }
    return nullptr;
  }

  static const char* cast(const nc_parts* parts) {
    return parts->stochastic ? for_each_run<cast_of<Stochastic>>(parts, parts->ranks - 1)
                             : for_each_run<cast_of<Nearest>>(parts, parts->ranks - 1);
  }
  static const char* add(const nc_parts* parts) { return for_each_run<add_of>(parts, 1); }
};

}  // namespace narrowcast::inline NC_VARIANT
