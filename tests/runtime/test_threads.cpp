// What a user does from several threads: loading plugins, looking for formats, casts of matrices of
// one format. The same tables and the same bytes as from one; under ThreadSanitizer, without races.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/adamw.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

constexpr int kThreads = 4;

void at_once(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(body, thread);
  for (std::thread& thread : threads) thread.join();
}

// This program's first look at the plugins, which no other test of it may take before.
TEST_CASE("threads that load the same files find the same tables") {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(NARROWCAST_TEST_PLUGINS)) {
    if (entry.path().extension() == ".so") files.push_back(entry.path().string());
  }
  REQUIRE(!files.empty());
  REQUIRE(loaded_plugins().empty());
  std::vector<std::vector<const nc_plugin*>> tables(
      kThreads, std::vector<const nc_plugin*>(files.size(), nullptr));
  at_once([&](int thread) {
    for (size_t i = 0; i < files.size(); ++i) {
      const size_t file = (i + static_cast<size_t>(thread) * 3) % files.size();
      tables[thread][file] = &load_plugin(files[file]);
      if (find_plugin(tables[thread][file]->format->name) != tables[thread][file])
        tables[thread][file] = nullptr;
    }
  });
  for (size_t file = 0; file < files.size(); ++file) {
    for (int thread = 0; thread < kThreads; ++thread) {
      CHECK(tables[thread][file] != nullptr);
      CHECK(tables[thread][file] == tables[0][file]);
    }
  }
  CHECK(loaded_plugins().size() == files.size());
}

Quantized cast(const nc_plugin& plugin, const char* variant, Extent matrix, uint64_t seed) {
  std::vector<float> values = draw(Kind::kOrdinary, matrix.rows * matrix.columns, seed);
  Quantized result(*plugin.format, matrix);
  nc_tensor tensor = tensor_of(matrix);
  tensor.value = values.data();
  result.connect(*plugin.format, tensor);
  const nc_machine& machine = *plugin.cpu_variant(variant);
  float amax = 0;
  const char* fault = quantize(machine, launch_of(machine, &tensor, 1, nullptr, &amax));
  if (fault != nullptr) throw std::runtime_error(fault);
  return result;
}

TEST_CASE("threads that cast matrices of one format, each its own, do not see each other") {
  constexpr Extent kMatrix{192, 320};
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    for (const char* const* variant = plugin->cpu_variants; *variant != nullptr; ++variant) {
      CAPTURE(std::string(*variant));
      std::vector<Quantized> made(kThreads, Quantized(*plugin->format, kMatrix));
      at_once([&](int thread) { made[thread] = cast(*plugin, *variant, kMatrix, thread); });
      for (int thread = 0; thread < kThreads; ++thread)
        CHECK(made[thread] == cast(*plugin, *variant, kMatrix, thread));
    }
  }
}

// Tiles in turn on all threads: neighbours are never on one.
void in_turn(int64_t count, void (*body)(void*, int64_t, int64_t), void* context) {
  at_once([=](int thread) {
    for (int64_t i = thread; i < count; i += kThreads) body(context, i, i + 1);
  });
}

// What a cast and a step of the optimizer leave of a matrix: its state, the bytes of both usages,
// and what they decode to.
struct Trained {
  std::vector<float> master, exp_avg, exp_avg_sq, grad, decoded[2];
  Quantized bytes;
  bool operator==(const Trained&) const = default;
};

Trained train(const nc_plugin& plugin, Extent matrix, nc_parallel_for parallel_for) {
  const nc_machine& machine = *plugin.cpu;
  const int64_t n = matrix.rows * matrix.columns;
  Trained made{draw(Kind::kOrdinary, n, 1),
               std::vector<float>(n),
               std::vector<float>(n),
               draw(Kind::kOrdinary, n, 2),
               {},
               {*plugin.format, matrix}};
  nc_tensor tensor = tensor_of(matrix);
  tensor.value = made.master.data();
  tensor.state[0] = made.exp_avg.data();
  tensor.state[1] = made.exp_avg_sq.data();
  made.bytes.connect(*plugin.format, tensor);
  nc_step step = adamw_step({1e-3, 0.9, 0.95, 1e-8, 0.1, true}, 1);
  step.grad = made.grad.data();
  float amax = 0;
  nc_launch launch = launch_of(machine, &tensor, 1, nullptr, &amax);
  launch.parallel_for = parallel_for;
  REQUIRE(quantize(machine, launch) == nullptr);
  launch.steps = &step;
  amax = 0;
  REQUIRE(update(machine, launch) == nullptr);
  launch.steps = nullptr;

  for (const nc_function function :
       {machine.derive_columnwise, machine.dequantize_rowwise, machine.dequantize_columnwise}) {
    if (function == nullptr) continue;
    std::vector<float>& values = made.decoded[function == machine.dequantize_columnwise];
    values.resize(static_cast<size_t>(n));
    tensor.value = values.data();
    launch.tiles = assign_tiles(&tensor, 1, machine, function);
    REQUIRE(function(&launch) == nullptr);
  }
  return made;
}

TEST_CASE("tiles of one launch on several threads give what one thread gives") {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    constexpr Extent kMatrix{192, 1300};
    CHECK(train(*plugin, kMatrix, in_turn) == train(*plugin, kMatrix, nullptr));
  }
}

}  // namespace
}  // namespace narrowcast::test
