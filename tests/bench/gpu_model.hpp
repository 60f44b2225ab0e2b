// What an optimizer has of a model's layers (layers.hpp), in a GPU's memory.
#pragma once

#include <utility>
#include <vector>

#include "runtime/numeric/narrow.hpp"
#include "tests/bench/layers.hpp"
#include "tests/support/adamw.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {

// Parameters, moments and gradients of all layers, for every format in turn.
class Model {
 public:
  Model() {
    const std::vector<float> pool = draw(Kind::kOrdinary, int64_t{1} << 24, 1);
    std::vector<float> squares = pool;
    for (float& value : squares) value = value * value * 1e-3f;
    std::vector<Bf16> grads;
    for (float value : pool) grads.push_back(narrow<Bf16>(value * 0.1f));
    for (const Extent matrix : all_layers()) {
      const size_t n = static_cast<size_t>(matrix.rows * matrix.columns);
      matrices_.push_back(matrix);
      masters_.push_back(repeated(pool, n));
      exp_avgs_.push_back(repeated(pool, n));
      exp_avg_sqs_.push_back(repeated(squares, n));
      grads_.push_back(repeated(grads, n));
      decoded_.push_back(repeated(grads, n));
      parameters_ += static_cast<int64_t>(n);
    }
  }

  int64_t parameters() const { return parameters_; }
  size_t count() const { return matrices_.size(); }
  const std::vector<Extent>& matrices() const { return matrices_; }

  std::vector<nc_tensor> tensors() const {
    std::vector<nc_tensor> tensors;
    for (size_t i = 0; i < count(); ++i) {
      nc_tensor tensor = tensor_of(matrices_[i]);
      tensor.value = masters_[i].get();
      tensor.state[0] = exp_avgs_[i].get();
      tensor.state[1] = exp_avg_sqs_[i].get();
      tensors.push_back(tensor);
    }
    return tensors;
  }

  // Moments in a state format, by its place among those of a plugin: zeros, of which steps make
  // others.
  std::vector<nc_tensor> coded_tensors(std::vector<nc_tensor> tensors, int32_t place) {
    const int64_t block = plain_plugin().state_formats[place].block;
    codes_.clear();
    scales_.clear();
    for (nc_tensor& tensor : tensors) {
      const int64_t scales = tensor.rows * ceil_div(tensor.columns, block);
      tensor.state_dtype = NC_STATE_FORMAT + place;
      for (int k = 0; k < NC_STATE_COUNT; ++k) {
        codes_.emplace_back(std::vector<uint8_t>(tensor.rows * tensor.columns));
        scales_.emplace_back(std::vector<float>(scales));
        tensor.state[k] = codes_.back().get();
        tensor.state_scale[k] = scales_.back().get();
      }
    }
    return tensors;
  }

  // Masters in bfloat16 with eight bits more.
  std::vector<nc_tensor> narrow_tensors(std::vector<nc_tensor> tensors) {
    tensors = with_values(std::move(tensors), decoded_);
    residuals_.clear();
    for (nc_tensor& tensor : tensors) {
      residuals_.emplace_back(std::vector<int8_t>(tensor.rows * tensor.columns));
      tensor.residual = residuals_.back().get();
    }
    return tensors;
  }

  // A learning rate of 0 keeps the masters; constant gradients bring the moments to rest.
  std::vector<nc_step> steps() const {
    std::vector<nc_step> steps(count(), adamw_step({1e-6, 0.9, 0.95, 1e-8, 0.1, true}, 1000));
    for (size_t i = 0; i < count(); ++i) {
      steps[i].grad = grads_[i].get();
      steps[i].grad_dtype = NC_BF16;
    }
    return steps;
  }

  // The gradients serve as a bf16 source of casts.
  std::vector<nc_tensor> bf16_tensors(std::vector<nc_tensor> tensors) const {
    return with_values(std::move(tensors), grads_);
  }
  std::vector<nc_tensor> decoded_tensors(std::vector<nc_tensor> tensors) const {
    return with_values(std::move(tensors), decoded_);
  }

 private:
  static std::vector<nc_tensor> with_values(std::vector<nc_tensor> tensors,
                                            const std::vector<DeviceArray<Bf16>>& values) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].value = values[i].get();
      tensors[i].value_dtype = NC_BF16;
    }
    return tensors;
  }

  std::vector<Extent> matrices_;
  std::vector<DeviceArray<float>> masters_, exp_avgs_, exp_avg_sqs_;
  std::vector<DeviceArray<Bf16>> grads_, decoded_;
  std::vector<DeviceArray<uint8_t>> codes_;
  std::vector<DeviceArray<int8_t>> residuals_;
  std::vector<DeviceArray<float>> scales_;
  int64_t parameters_ = 0;
};

}  // namespace narrowcast::test
