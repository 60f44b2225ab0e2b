// What spans a tensor (its scale, amax, history) as a gathered weight has it.
#pragma once

#include <ATen/ops/empty_like.h>

#include "bindings/core/tensors.hpp"

namespace narrowcast {

// It lies where the shard has it, so nothing is copied in a step: before the shard is written to
// while the weight is gathered, keep() gives it memory of its own, and follow() takes that away
// with the next gather. Whatever aliases the weight's tensor, as a graph that has saved it for a
// backward, sees both: its storage stays the same.
class Spanning {
 public:
  // `shard`: contiguous, in memory.
  explicit Spanning(at::Tensor shard)
      : shard_(std::move(shard)), gathered_(at::empty_like(shard_)) {
    look_at(shard_);
  }

  const at::Tensor& gathered() const { return gathered_; }

  void follow() {
    if (!is_following()) look_at(shard_);
  }
  void keep() {
    if (is_following()) look_at(gathered_.clone());
  }

 private:
  static void forget(void* tensor) { delete static_cast<at::Tensor*>(tensor); }

  bool is_following() const { return gathered_.storage().data() == shard_.const_data_ptr(); }
  void look_at(const at::Tensor& memory) {
    gathered_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        {const_cast<void*>(memory.const_data_ptr()), new at::Tensor(memory), forget,
         memory.device()});
  }

  at::Tensor shard_, gathered_;
};

}  // namespace narrowcast
