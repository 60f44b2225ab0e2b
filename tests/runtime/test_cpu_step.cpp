// Optimizer steps on the CPU: fused or not, on one tensor or on its shards, the same bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/optimizer/plain.hpp"
#include "tests/support/adamw.hpp"
#include "tests/support/casts.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

// A matrix with the state of its update.
struct Trained {
  Extent matrix;
  std::vector<float> master, exp_avg, exp_avg_sq, grad;

  Trained(Extent matrix, uint64_t seed) : matrix(matrix) {
    const int64_t n = matrix.rows * matrix.columns;
    master = draw(Kind::kOrdinary, n, seed);
    exp_avg = draw(Kind::kOrdinary, n, seed + 1);
    exp_avg_sq = draw(Kind::kOrdinary, n, seed + 2);
    for (float& value : exp_avg_sq) value *= value;
    grad = draw(Kind::kOrdinary, n, seed + 3);
  }
  // Rows [first, first + rows) of it.
  nc_tensor tensor(int64_t first, int64_t rows) {
    nc_tensor t = tensor_of({rows, matrix.columns});
    t.value = master.data() + first * matrix.columns;
    t.state[0] = exp_avg.data() + first * matrix.columns;
    t.state[1] = exp_avg_sq.data() + first * matrix.columns;
    return t;
  }
  nc_step step(int64_t first, int64_t t) const {
    nc_step s = adamw_step({1e-3, 0.9, 0.95, 1e-8, 0.1, true}, t);
    s.grad = grad.data() + first * matrix.columns;
    return s;
  }
  bool operator==(const Trained& o) const {
    return master == o.master && exp_avg == o.exp_avg && exp_avg_sq == o.exp_avg_sq;
  }
};

TEST_CASE("the fused step is Adam, then quantize") {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    constexpr Extent kMatrix{352, 1300};
    Trained fused(kMatrix, 5), plain = fused;
    for (int64_t t = 1; t <= 3; ++t) {
      nc_tensor tensor = fused.tensor(0, kMatrix.rows), flat = plain.tensor(0, kMatrix.rows);
      const nc_step step = fused.step(0, t), flat_step = plain.step(0, t);
      flat.columns *= flat.rows;
      flat.rows = 1;
      const nc_launch launch = launch_of(*plain_plugin().cpu, &flat, 1, &flat_step);
      REQUIRE(adamw_of(*plain_plugin().cpu).update(&launch) == nullptr);
      const Quantized expected = cast(*plugin->format, *plugin->cpu, kMatrix, plain.master);

      Quantized actual(*plugin->format, kMatrix);
      actual.history = expected.history;  // a delayed scale that happens to be that of this amax
      actual.connect(*plugin->format, tensor);
      float amax = 0;
      REQUIRE(update(*plugin->cpu, launch_of(*plugin->cpu, &tensor, 1, &step, &amax)) == nullptr);
      CHECK(fused == plain);
      actual.history = expected.history;
      CHECK(actual == expected);
    }
  }
}

// What a rank of `ranks` owns of a matrix: as many rows as the others, a multiple of the row step;
// the last ranks may have less, or none.
int64_t shard_rows(const nc_format& format, Extent matrix, int64_t ranks) {
  return round_up(ceil_div(matrix.rows, ranks), format.row_step);
}

// The code of an element: its bits, out of the one or two bytes that hold them.
uint32_t code_at(const Layout& layout, const uint8_t* data, Extent matrix, int64_t r, int64_t c) {
  const BitPosition at = element_position(layout, matrix, r, c);
  uint32_t bits = data[at.byte];
  if (at.shift + layout.element_bits > 8) bits |= static_cast<uint32_t>(data[at.byte + 1]) << 8;
  return bits >> at.shift & ((1u << layout.element_bits) - 1);
}

// How many elements of a shard, whose first row is row `first` of the whole, have another code or
// another scale there, in either usage.
int64_t elements_unlike(const nc_format& format, const Quantized& whole, Extent matrix,
                        int64_t first, const Quantized& part, Extent shard) {
  int64_t unlike = 0;
  for (const int data : {NC_ROWWISE_DATA, NC_COLUMNWISE_DATA}) {
    const Layout& layout = layout_of(format, data);
    const uint8_t *codes = part.buffer[data].data(), *scales = part.buffer[data + 1].data();
    const uint8_t *all_codes = whole.buffer[data].data(),
                  *all_scales = whole.buffer[data + 1].data();
    const int64_t bytes = layout.scale_bytes;
    for (int64_t r = 0; r < shard.rows; ++r) {
      for (int64_t c = 0; c < shard.columns; ++c) {
        const bool same_scale =
            std::memcmp(scales + scale_index(layout, shard, r, c) * bytes,
                        all_scales + scale_index(layout, matrix, first + r, c) * bytes,
                        static_cast<size_t>(bytes)) == 0;
        unlike += !same_scale || code_at(layout, codes, shard, r, c) !=
                                     code_at(layout, all_codes, matrix, first + r, c);
      }
    }
  }
  return unlike;
}

TEST_CASE("a step on shards is the step on the whole") {
  for (const nc_plugin* plugin : all_plugins()) {
    const nc_format& format = *plugin->format;
    CAPTURE(std::string(format.name));
    for (const Extent matrix : {Extent{512, 640}, Extent{544, 100}, Extent{96, 4096}}) {
      for (const int64_t ranks : {1, 2, 3, 4, 8}) {
        CAPTURE(ranks);
        Trained whole(matrix, 9), cut = whole;
        nc_tensor tensor = whole.tensor(0, matrix.rows);
        const nc_step step = whole.step(0, 4);
        Quantized expected(format, matrix);
        expected.connect(format, tensor);
        float whole_amax = 0;
        REQUIRE(update(*plugin->cpu, launch_of(*plugin->cpu, &tensor, 1, &step, &whole_amax)) ==
                nullptr);

        const int64_t rows = shard_rows(format, matrix, ranks);
        std::vector<Quantized> shards;
        std::vector<nc_tensor> tensors;
        std::vector<nc_step> steps;
        for (int64_t first = 0; first < matrix.rows; first += rows) {
          const int64_t own = std::min(rows, matrix.rows - first);
          shards.emplace_back(format, Extent{own, matrix.columns});
          tensors.push_back(cut.tensor(first, own));
          steps.push_back(cut.step(first, 4));
        }
        const int64_t count = static_cast<int64_t>(shards.size());
        std::vector<float> amax(shards.size(), 0);
        for (int64_t i = 0; i < count; ++i) shards[i].connect(format, tensors[i]);
        const nc_launch launch =
            launch_of(*plugin->cpu, tensors.data(), count, steps.data(), amax.data());
        const std::vector<nc_function> functions = updating(*plugin->cpu);
        REQUIRE(functions[0](&launch) == nullptr);
        if (functions.size() > 1) {
          const float most =
              *std::max_element(amax.begin(), amax.end());  // what ranks would reduce
          std::fill(amax.begin(), amax.end(), most);
          REQUIRE(functions[1](&launch) == nullptr);
        }
        CHECK(cut == whole);
        for (int64_t i = 0; i < count; ++i) {
          const Extent shard{tensors[i].rows, matrix.columns};
          CHECK(shards[i].amax == expected.amax);
          CHECK(elements_unlike(format, expected, matrix, i * rows, shards[i], shard) == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::test
