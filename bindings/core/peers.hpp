// The matrices of a launch whose scale of the tensor is one, which follows from the largest
// magnitude of all of them.
#pragma once

#include <ATen/ops/amax.h>
#include <ATen/ops/take.h>
#include <ATen/ops/tensor.h>

#include "bindings/core/tensors.hpp"

namespace narrowcast {

class Peers {
 public:
  // places[i]: those whose scale matrix i has, itself among them; of all matrices equally many, so
  // that some may be there twice.
  Peers(const std::vector<std::vector<int64_t>>& places, at::Device device) : places_(places) {
    std::vector<int64_t> flat;
    for (const auto& some : places) flat.insert(flat.end(), some.begin(), some.end());
    const auto count = std::ssize(places);
    const at::Tensor table = at::tensor(flat, at::kLong).view({count, std::ssize(flat) / count});
    on_device_ = table.to(device, /*non_blocking=*/true);
  }

  // In the place of each matrix's amax the largest of its peers: two launches.
  void share(at::Tensor amaxes) const { at::amax_out(amaxes, amaxes.take(on_device_), {1}); }

  const std::vector<int64_t>& of(size_t matrix) const { return places_[matrix]; }

 private:
  std::vector<std::vector<int64_t>> places_;
  at::Tensor on_device_;
};

}  // namespace narrowcast
