// A reduce-scatter of some ranks on the CPU: what each has, sends, gets, and makes of it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/launch/dtype.hpp"
#include "runtime/reduce/part.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {

using Bytes = std::vector<uint8_t>;

struct PartsCase {
  int64_t ranks, elements;
  nc_dtype dtype;
  bool stochastic;
};
// Blocks that are whole and that are short; parts that begin at multiples of 16 bytes and
// elsewhere; more of them than the GPU reads at once.
inline constexpr PartsCase kPartsCases[] = {
    {2, 4096, NC_F32, false},  {2, 4096, NC_BF16, true},   {2, 1, NC_F32, false},
    {2, 7, NC_BF16, true},     {3, 2049, NC_F32, true},    {3, 5000, NC_F16, false},
    {4, 1031, NC_BF16, false}, {4, 1000, NC_F32, true},    {6, 2060, NC_F32, false},
    {9, 333, NC_F16, true},    {2, 100001, NC_F32, false}, {5, 24, NC_F32, false},
    {7, 2057, NC_F16, false},  {8, 1049, NC_BF16, false},  {8, 4096, NC_F32, false}};

inline std::vector<const nc_plugin*> plugins_with_parts() {
  std::vector<const nc_plugin*> plugins;
  std::ranges::copy_if(all_plugins(), std::back_inserter(plugins),
                       [](const nc_plugin* plugin) { return plugin->cpu->cast_parts != nullptr; });
  return plugins;
}

// Values of every kind, as numbers of a dtype.
inline Bytes numbers_of(nc_dtype dtype, int64_t count, uint64_t seed) {
  Bytes bytes;
  Random random(seed);
  with_dtype(dtype, [&]<class Type>(Type*) {
    std::vector<Type> numbers;
    Kind kind = Kind::kOrdinary;
    for (int64_t i = 0; i < count; ++i) {
      if (random.below(40) == 0) kind = kKinds[random.below(std::size(kKinds))];
      numbers.push_back(narrow<Type>(draw(kind, random)));
    }
    bytes.resize(numbers.size() * sizeof(Type));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
  });
  return bytes;
}

struct Reduced {
  const nc_format& format;
  PartsCase its;
  int64_t part_bytes, sum_bytes;
  std::vector<Bytes> values, sent, received, sum;  // of each rank

  Reduced(const nc_format& format, const PartsCase& its)
      : format(format),
        its(its),
        part_bytes(PartLayout(its.elements, format.rowwise.element_bits,
                              format.rowwise.block_columns, format.rowwise.scale_bytes)
                       .bytes),
        sum_bytes(its.elements * (its.dtype == NC_F32 ? 4 : 2)) {
    for (int64_t rank = 0; rank < its.ranks; ++rank) {
      const auto seed = static_cast<uint64_t>(rank + its.elements);
      values.push_back(numbers_of(its.dtype, its.ranks * its.elements, seed));
      sent.emplace_back((its.ranks - 1) * part_bytes, uint8_t{0x5a});
      received.emplace_back(sent.back());
      sum.emplace_back(sum_bytes, uint8_t{0x5a});
    }
  }

  // Without memory.
  nc_parts parts(int64_t rank) const {
    nc_parts parts{};
    parts.elements = its.elements;
    parts.ranks = its.ranks;
    parts.rank = rank;
    parts.seed = 0x123456789abcdef0;
    parts.step = 5;
    parts.first = static_cast<uint64_t>(rank * its.ranks * its.elements) + 3;
    parts.dtype = its.dtype;
    parts.stochastic = its.stochastic;
    parts.divisor = static_cast<float>(its.ranks);
    return parts;
  }

  void run(const nc_machine& cpu, nc_parallel_for parallel_for = nullptr) {
    const auto call = [&](nc_parts_function function, int64_t rank, std::vector<Bytes>& bytes) {
      const auto i = static_cast<size_t>(rank);
      nc_parts parts = this->parts(rank);
      parts.values = values[i].data();
      parts.bytes = bytes[i].data();
      parts.sum = sum[i].data();
      parts.parallel_for = parallel_for;
      return function(&parts) == nullptr;
    };
    for (int64_t rank = 0; rank < its.ranks; ++rank) REQUIRE(call(cpu.cast_parts, rank, sent));
    for (int64_t to = 0; to < its.ranks; ++to) {
      for (int64_t from = 0; from < its.ranks; ++from) {
        if (from != to) exchange(from, to);
      }
    }
    for (int64_t rank = 0; rank < its.ranks; ++rank) REQUIRE(call(cpu.add_parts, rank, received));
  }

  bool operator==(const Reduced& other) const { return sent == other.sent && sum == other.sum; }

 private:
  void exchange(int64_t from, int64_t to) {
    const int64_t slot = to - (to > from ? 1 : 0), into = from - (from > to ? 1 : 0);
    std::copy_n(sent[static_cast<size_t>(from)].begin() + slot * part_bytes, part_bytes,
                received[static_cast<size_t>(to)].begin() + into * part_bytes);
  }
};

}  // namespace narrowcast::test
