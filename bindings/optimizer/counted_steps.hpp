// The steps of one launch that a GPU counts and makes itself. Nothing waits for the GPU, and
// nothing is copied from memory of the host, so a CUDA graph can take them.
#pragma once

#include <ATen/ops/empty.h>

#include <cstring>
#include <variant>

#include "bindings/core/launch.hpp"
#include "bindings/core/tensors.hpp"
#include "runtime/launch/capture.hpp"

namespace narrowcast {

// Of each group of options: numbers, and tensors on the GPU with one float32 each.
using CountedOptions = std::vector<std::vector<std::variant<double, at::Tensor>>>;

class CountedSteps {
 public:
  // `names`: of the rule's options.
  CountedSteps(const char* const* names, at::Device device) : names_(names), device_(device) {}

  // Keeps the options of the next step. `grad_scale`, `found_inf`: float32, one element each, on
  // the GPU.
  void prepare(const CountedOptions& groups, OptionalTensor grad_scale, OptionalTensor found_inf) {
    options_.clear();
    for (const auto& group : groups) {
      for (size_t i = 0; i < group.size(); ++i) {
        const auto* tensor = std::get_if<at::Tensor>(&group[i]);
        options_.push_back(tensor != nullptr
                               ? nc_option{0, checked_floats(*tensor, 1, device_, names_[i])}
                               : nc_option{std::get<double>(group[i]), nullptr});
      }
    }
    grad_scale_ = std::move(grad_scale);
    found_inf_ = std::move(found_inf);
  }

  // The rows of a launch's table of steps, in the GPU's memory.
  at::Tensor begin(nc_begin_function function, const std::vector<nc_counted>& tensors) {
    const auto count = std::ssize(tensors);
    const at::Tensor steps = at::empty({count, static_cast<int64_t>(sizeof(nc_step) / 8)},
                                       at::TensorOptions().dtype(at::kLong).device(device_));
    const at::Tensor given = upload(tensors);
    const auto* rows = static_cast<const nc_counted*>(given.const_data_ptr());
    call(function, "beginning a step",
         nc_begin{.steps = static_cast<nc_step*>(steps.mutable_data_ptr()),
                  .tensors = rows,
                  .options = reinterpret_cast<const nc_option*>(rows + count),
                  .grad_scale = address_of_one(grad_scale_, "grad_scale"),
                  .found_inf = found_inf(),
                  .count = count,
                  .stream = nullptr},
         device_);
    return steps;
  }

  const float* found_inf() const { return address_of_one(found_inf_, "found_inf"); }

 private:
  const float* address_of_one(const OptionalTensor& tensor, const char* what) const {
    return tensor ? checked_floats(*tensor, 1, device_, what) : nullptr;
  }

  // Rows, and options behind them. An upload stays for later steps with the same words. A graph
  // uploads its words at each replay, to memory of its own.
  at::Tensor upload(const std::vector<nc_counted>& tensors) {
    const size_t of_tensors = tensors.size() * sizeof(nc_counted);
    std::vector<uint64_t> words((of_tensors + options_.size() * sizeof(nc_option)) / 8);
    std::memcpy(words.data(), tensors.data(), of_tensors);
    std::memcpy(words.data() + of_tensors / 8, options_.data(),
                options_.size() * sizeof(nc_option));
    if (capture_of(stream_of(device_)) != 0) return uploaded_to(device_, words);
    if (words != words_) {
      uploaded_ = uploaded_to(device_, words);
      words_ = std::move(words);
    }
    return uploaded_;
  }

  const char* const* names_;
  at::Device device_;
  std::vector<nc_option> options_;
  OptionalTensor grad_scale_, found_inf_;
  std::vector<uint64_t> words_;
  at::Tensor uploaded_;
};

}  // namespace narrowcast
