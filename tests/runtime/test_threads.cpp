// What a user does from several threads: loading plugins, looking for formats, casts of matrices of
// one format. The same tables and the same bytes as from one; under ThreadSanitizer, without races.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/plugins.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

constexpr int kThreads = 4;

void at_once(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
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
  const char* fault = quantize(machine, launch_of(machine, &tensor, 1, nullptr, &result.amax));
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

}  // namespace
}  // namespace narrowcast::test
