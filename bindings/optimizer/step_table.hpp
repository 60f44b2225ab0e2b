// The constants of a step that a launch reads, one row a parameter, where the machine reads it.
#pragma once

#include <ATen/ops/zeros.h>

#include "bindings/core/launch.hpp"

namespace narrowcast {

// The rows of a step and, if wanted, a zero for each, in whose place the launch puts its amax. To a
// GPU one copy brings both: a kernel that fills so few floats costs the host as much as a launch.
class StepTable {
 public:
  StepTable() = default;
  StepTable(const std::vector<nc_step>& steps, bool with_amaxes, at::Device device) {
    const auto count = std::ssize(steps);
    const bool is_copied = device.is_cuda() && count > NC_PARAMETER_TENSORS;
    if (!with_amaxes || !is_copied) {
      table_ = {steps, device};
      if (!with_amaxes) return;
      zeros_ = at::zeros({count}, at::TensorOptions().dtype(at::kFloat).device(device));
      amaxes_ = zeros_.mutable_data_ptr<float>();
      return;
    }
    constexpr int64_t kFloatsOfRow = sizeof(nc_step) / sizeof(float);
    std::vector<nc_step> rows(steps);
    rows.resize(count + (count + kFloatsOfRow - 1) / kFloatsOfRow);
    table_ = {rows, device};
    amaxes_ = static_cast<float*>(table_.copy.mutable_data_ptr()) + count * kFloatsOfRow;
  }

  const nc_step* rows() const { return table_.rows; }
  float* amaxes() const { return amaxes_; }  // null if there are none

 private:
  Table<nc_step> table_;
  at::Tensor zeros_;
  float* amaxes_ = nullptr;
};

}  // namespace narrowcast
