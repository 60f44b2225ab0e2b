// AdamW, where a test or a benchmark needs a rule.
#pragma once

#include <array>
#include <vector>

#include "runtime/optimizer/plain.hpp"
#include "runtime/optimizer/step.hpp"
#include "runtime/plugin/registry.hpp"

namespace narrowcast::test {

inline int64_t adamw_place() { return find_rule(plain_plugin(), "adamw"); }

// Its kernels. The formats of a build have the rules of the build, in their order.
inline const nc_update& adamw_of(const nc_machine& machine) {
  return machine.updates[adamw_place()];
}

// `options`: lr, beta1, beta2, eps, weight_decay, decoupled.
inline nc_step adamw_step(const std::array<double, 6>& options, int64_t t, double grad_scale = 1) {
  std::vector<double> every(options.begin(), options.end());
  every.push_back(1);  // bias_correction
  return make_step(plain_plugin().update_rules[adamw_place()], every, t, grad_scale);
}

}  // namespace narrowcast::test
