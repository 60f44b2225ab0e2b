#include "codegen/accuracy.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

#include "codegen/gaussian.hpp"
#include "codegen/golden.hpp"

namespace narrowcast::codegen {
namespace {

constexpr int64_t kRows = 256, kColumns = 256;

const std::vector<float>& sample() {
  static const std::vector<float> kValues = gaussian_sample(kRows * kColumns);
  return kValues;
}

// Sums in the order of the rows: the same to the bit on every machine.
Accuracy accuracy_of(const Plan& plan, const nc_layout& usage) {
  const std::vector<float>& values = sample();
  const std::vector<float> kept = golden_decoded(plan, usage, kRows, values);
  double noise = 0, signal = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i], error = kept[i] - x;
    noise += error * error;
    signal += x * x;
  }
  return {std::sqrt(noise / signal), 10 * (logarithm(signal / noise) / logarithm(10))};
}

std::string text(const char* format, double number) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), format, number);
  return buffer;
}

}  // namespace

Accuracies accuracy_of(const Plan& plan) {
  return {accuracy_of(plan, plan.rowwise), accuracy_of(plan, plan.columnwise)};
}

std::string error_text(const Accuracy& accuracy) {
  return text("%.2f %%", 100 * accuracy.relative_error);
}

std::string decibels_text(const Accuracy& accuracy) {
  return text("%.1f dB", accuracy.signal_to_noise);
}

std::string accuracy_method() {
  return "The relative error is `sqrt(sum (q - x)^2 / sum x^2)`, the root mean square of the error "
         "over that of the values; the signal-to-noise ratio is its `-20 log10`. x is a fixed "
         "matrix of " +
         std::to_string(kRows) + " x " + std::to_string(kColumns) +
         " standard normal numbers (Marsaglia's polar method over a counter: "
         "`codegen/gaussian.hpp`), q what is left of it after the format's cast to nearest, with "
         "scales from the amax of x itself.";
}

}  // namespace narrowcast::codegen
