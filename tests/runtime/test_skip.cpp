// A launch in which some tensors are to stay as they are, because the verdict on them is negative.
#include <doctest/doctest.h>

#include "tests/support/plugins.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

TEST_CASE("a negative verdict leaves the tensor as it is") {
  constexpr Extent kMatrix{96, 160};
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    const nc_machine& machine = *plugin->cpu;
    std::vector<float> values = draw(Kind::kOrdinary, kMatrix.rows * kMatrix.columns, 3);
    const Quantized untouched(*plugin->format, kMatrix);
    Quantized skipped = untouched, changed = untouched, alone = untouched;
    std::vector<nc_tensor> tensors(2, tensor_of(kMatrix));
    for (nc_tensor& tensor : tensors) tensor.value = values.data();
    skipped.connect(*plugin->format, tensors[0]);
    changed.connect(*plugin->format, tensors[1]);
    float amax[] = {0.25f, 0.125f};
    const float verdict[] = {-1.0f, 0.0f};
    const auto functions = present({machine.start_history, machine.cast, machine.record_amax});
    nc_launch both = launch_of(machine, tensors.data(), 2, nullptr, amax);
    both.verdict = verdict;
    REQUIRE(run_all(functions, both) == nullptr);
    CHECK(skipped == untouched);
    alone.connect(*plugin->format, tensors[1]);
    REQUIRE(run_all(functions, launch_of(machine, &tensors[1], 1, nullptr, &amax[1])) == nullptr);
    CHECK(changed == alone);
    CHECK(!(changed == untouched));
  }
}

}  // namespace
}  // namespace narrowcast::test
