// How a graph of torch.compile knows a weight: by a tensor of one byte, which its operators take in
// the place of codes and scales, and by which they find these when the graph runs.
#pragma once

#include "bindings/core/store.hpp"

namespace narrowcast {

// A key of a store, which it keeps alive; where the store's bytes are none that kernels can work
// on, a tensor on their device like a key.
at::Tensor graph_key(std::shared_ptr<Store> store);

// The bytes that a key stands for, as they are now: those of a store, or of a part of it. Null for
// any other tensor.
std::shared_ptr<Buffers> bytes_of_key(const at::Tensor& tensor);
// The same, and TypeError for any other tensor.
std::shared_ptr<Buffers> checked_bytes_of_key(const at::Tensor& key);

}  // namespace narrowcast
