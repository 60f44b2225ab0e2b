// What a machine's cast makes of a matrix.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "tests/support/quantized.hpp"

namespace narrowcast::test {

inline Quantized cast(const nc_format& format, const nc_machine& machine, Extent matrix,
                      const std::vector<float>& values, nc_parallel_for parallel_for = nullptr) {
  Quantized result(format, matrix);
  nc_tensor tensor = tensor_of(matrix);
  tensor.value = const_cast<float*>(values.data());
  result.connect(format, tensor);
  float amax = 0;
  nc_launch launch = launch_of(machine, &tensor, 1, nullptr, &amax);
  launch.parallel_for = parallel_for;
  REQUIRE(quantize(machine, launch) == nullptr);
  return result;
}

}  // namespace narrowcast::test
