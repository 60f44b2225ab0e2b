#include "codegen/page_text.hpp"

#include <cstdio>

namespace narrowcast::codegen {

std::string number_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.6g", value);
  return buffer;
}

std::string scale_text(const Plan& plan) {
  const std::string block_scale(word_of(plan.scale));
  return plan.two_levels
             ? block_scale + ", under a tensor scale of " + std::string(word_of(plan.tensor_scale))
             : block_scale;
}

std::string gather_text(const Plan& plan) {
  return plan.gather == Gather::kRowwise ? "rowwise" : "by pass";
}

}  // namespace narrowcast::codegen
