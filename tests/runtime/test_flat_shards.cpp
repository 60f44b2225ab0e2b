// The law of flat shards: however a matrix is cut, and wherever, its owners together write the
// bytes of the whole cast, and each writes no bit of another.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include "tests/support/flat_shards.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

template <class Action>
void for_each_format(Extent matrix, const Action& action) {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    if (holds(*plugin->format, matrix)) action(*plugin);
  }
}

constexpr Extent kSmall{36, 52};
constexpr int64_t kElements = kSmall.rows * kSmall.columns;

TEST_CASE("every cut of a small matrix") {
  for_each_format(kSmall, [](const nc_plugin& plugin) {
    const Subject<HostMemory> subject(plugin, *plugin.cpu, kSmall, draw(Kind::kBits, kElements, 1));
    for (int64_t cut = 0; cut <= kElements; ++cut) subject.check({cut});
  });
}

TEST_CASE("two cuts, near to each other, to rows and to blocks, or anywhere") {
  for_each_format(kSmall, [](const nc_plugin& plugin) {
    Random random(2);
    const Subject<HostMemory> subject(plugin, *plugin.cpu, kSmall,
                                      draw(Kind::kRagged, kElements, 3));
    for (int64_t i = 0; i < 400; ++i) {
      const int64_t one = random.below(kElements + 1);
      const int64_t near = std::min<int64_t>(one + random.below(5), kElements);
      const int64_t far = random.below(kElements + 1);
      const int64_t row = random.below(kSmall.rows + 1) * kSmall.columns;
      for (const int64_t other : {near, far, row})
        subject.check({std::min(one, other), std::max(one, other)});
    }
  });
}

TEST_CASE("equal shares of 1 to 128 owners, and special values") {
  for_each_format(kSmall, [](const nc_plugin& plugin) {
    for (const Kind kind : kKinds) {
      const Subject<HostMemory> subject(plugin, *plugin.cpu, kSmall, draw(kind, kElements, 4));
      for (const int64_t owners : {1, 2, 3, 4, 5, 7, 8, 16, 128}) {
        std::vector<int64_t> cuts;
        for (int64_t i = 1; i < owners; ++i)
          cuts.push_back(std::min(ceil_div(kElements, owners) * i, kElements));
        subject.check(cuts);
      }
    }
  });
}

TEST_CASE("owners of nothing and of one element, first, in the middle and last") {
  for_each_format(kSmall, [](const nc_plugin& plugin) {
    const Subject<HostMemory> subject(plugin, *plugin.cpu, kSmall, draw(Kind::kBits, kElements, 5));
    for (const std::vector<int64_t>& cuts :
         std::vector<std::vector<int64_t>>{{0, 0, 700},
                                           {700, 700, 700},
                                           {700, kElements, kElements},
                                           {1, 2, 3, 4},
                                           {700, 701, 702},
                                           {kElements - 2, kElements - 1},
                                           {0, 1, 1, kElements - 1}})
      subject.check(cuts);
  });
}

TEST_CASE("larger matrices, cut anywhere, with either source and rounding") {
  for (const Extent matrix : {Extent{100, 60}, Extent{256, 272}, Extent{304, 304}, Extent{64, 2052},
                              Extent{4, 4096}, Extent{2000, 4}}) {
    for_each_format(matrix, [&](const nc_plugin& plugin) {
      Random random(6);
      const int64_t elements = matrix.rows * matrix.columns;
      for (const bool source_bf16 : {false, true}) {
        const Subject<HostMemory> subject(plugin, *plugin.cpu, matrix,
                                          draw(Kind::kOrdinary, elements, 7),
                                          options(source_bf16, !source_bf16));
        for (const int count : {1, 4}) {
          std::multiset<int64_t> cuts;
          for (int i = 0; i < count; ++i) cuts.insert(random.below(static_cast<int>(elements)));
          subject.check({cuts.begin(), cuts.end()});
        }
      }
    });
  }
}

TEST_CASE("the fused update of flat shards is that of the whole") {
  for (const Extent matrix : {kSmall, Extent{304, 304}}) {
    for_each_format(matrix, [&](const nc_plugin& plugin) {
      Random random(8);
      const int64_t elements = matrix.rows * matrix.columns;
      for (const bool stochastic : {false, true}) {
        const Subject<HostMemory> subject(plugin, *plugin.cpu, matrix,
                                          draw(Kind::kOrdinary, elements, 9),
                                          options(false, stochastic));
        for (int i = 0; i < 20; ++i) {
          std::multiset<int64_t> cuts;
          for (int n = 0; n < 3; ++n) cuts.insert(random.below(static_cast<int>(elements)));
          subject.check_update({cuts.begin(), cuts.end()});
        }
      }
    });
  }
}

// The end of a matrix whose elements 32 bits cannot count, beside its last row alone.
TEST_CASE("the shard at the end of a matrix of more than 2^31 elements") {
  constexpr Extent kMatrix{65537, 32768}, kRow{1, kMatrix.columns};
  constexpr int64_t kEnd = kMatrix.rows * kMatrix.columns, kBegin = kEnd - kRow.columns - 1000;
  struct Release {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  const std::vector<float> values = draw(Kind::kOrdinary, kEnd - kBegin, 14);
  for (const nc_plugin* plugin : all_plugins()) {
    const nc_format& format = *plugin->format;
    if (format.tensor_amax != 0 || format.rowwise.block_rows != 1) continue;
    CAPTURE(std::string(format.name));
    State last{{values.end() - kRow.columns, values.end()}, {}, {}, {}};
    const Quantized row = whole_of(format, *plugin->cpu, kRow, last, {}, {});
    nc_tensor tensor = tensor_of(kMatrix);
    const uintptr_t first = reinterpret_cast<uintptr_t>(values.data());
    tensor.value = reinterpret_cast<void*>(first - uintptr_t{kBegin} * sizeof(float));
    std::unique_ptr<uint8_t, Release> buffers[2];  // untouched pages cost nothing
    for (int b : {NC_ROWWISE_DATA, NC_ROWWISE_SCALE}) {
      buffers[b].reset(
          static_cast<uint8_t*>(std::calloc(static_cast<size_t>(bytes_of(format, kMatrix, b)), 1)));
      tensor.buffer[b] = buffers[b].get();
    }
    set_shard(tensor, *plugin->cpu, kBegin, kEnd, nullptr);
    const nc_launch launch = launch_of(*plugin->cpu, &tensor, 1);
    REQUIRE(plugin->cpu->cast(&launch) == nullptr);
    const int64_t data = element_position(format.rowwise, kMatrix, kMatrix.rows - 1, 0).byte;
    CHECK(std::memcmp(buffers[0].get() + data, row.buffer[0].data(), row.buffer[0].size()) == 0);
    for (int64_t c = 0; c < kRow.columns; c += format.rowwise.scale_per_columns) {
      const int64_t bytes = format.rowwise.scale_bytes;
      const int64_t at = scale_index(format.rowwise, kMatrix, kMatrix.rows - 1, c) * bytes;
      const int64_t alone = scale_index(format.rowwise, kRow, 0, c) * bytes;
      REQUIRE(std::memcmp(buffers[1].get() + at, row.buffer[1].data() + alone,
                          static_cast<size_t>(bytes)) == 0);
    }
  }
}

// The elements, row by row, that have bits in the bytes of a usage: the first and the last of each.
std::vector<std::pair<int64_t, int64_t>> elements_of_bytes(const nc_layout& layout, Extent matrix) {
  std::map<int64_t, std::pair<int64_t, int64_t>> of_byte;
  for (int64_t element = 0; element < matrix.rows * matrix.columns; ++element) {
    const BitPosition first =
        element_position(layout, matrix, element / matrix.columns, element % matrix.columns);
    for (int64_t byte = first.byte; byte * 8 < first.byte * 8 + first.shift + layout.element_bits;
         ++byte)
      of_byte.try_emplace(byte, element, element).first->second.second = element;
  }
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const auto& [byte, elements] : of_byte) all.push_back(elements);
  return all;
}

TEST_CASE("owners tell each other the values of elements that share a byte, and of no others") {
  for_each_format(kSmall, [](const nc_plugin& plugin) {
    const bool columnwise = !plugin.format->columnwise_derived;
    std::vector<std::pair<int64_t, int64_t>> bytes =
        elements_of_bytes(plugin.format->rowwise, kSmall);
    if (columnwise) {
      const auto more = elements_of_bytes(plugin.format->columnwise, kSmall);
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    for (int64_t cut = 1; cut < kElements; ++cut) {
      int64_t begin = cut, end = cut;
      for (const auto& [first, last] : bytes) {
        if (first >= cut || last < cut) continue;
        begin = std::min(begin, first);
        end = std::max(end, last + 1);
      }
      const Cuts cuts(*plugin.format, kSmall, columnwise, {cut}, 0);
      CAPTURE(cut);
      REQUIRE(cuts.values() == end - begin);
      REQUIRE(cuts.divides_bytes(cut) == (begin < end));
    }
  });
}

TEST_CASE("cuts at whole rows in multiples of the row step share nothing") {
  constexpr Extent kMatrix{1024, 64};
  for_each_format(kMatrix, [&](const nc_plugin& plugin) {
    const int64_t step = plugin.format->row_step * kMatrix.columns;
    const Cuts cuts(*plugin.format, kMatrix, !plugin.format->columnwise_derived,
                    {step, 2 * step, 5 * step}, 0);
    CHECK(cuts.amaxes() == 0);
    CHECK(cuts.values() == 0);
    CHECK(!cuts.divides(step));
  });
}

}  // namespace
}  // namespace narrowcast::test
