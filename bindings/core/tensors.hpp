// From torch tensors to the pointers of a launch, with every check that keeps a kernel inside its
// memory. `what` are the parts of a tensor's name in messages.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <optional>

#include "bindings/core/errors.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast {

using OptionalTensor = std::optional<at::Tensor>;

// A tensor whose values lie in memory of its own: neither a subclass nor what a trace works with.
inline bool is_plain(const at::Tensor& tensor) {
  return !tensor.unsafeGetTensorImpl()->is_python_dispatch() && tensor.has_storage() &&
         !tensor.is_meta();
}

// The dtype's number in the plugin's table; -1 for others than float32, bfloat16 and float16.
inline int32_t dtype_number(at::ScalarType dtype) {
  return dtype == at::kFloat      ? NC_F32
         : dtype == at::kBFloat16 ? NC_BF16
         : dtype == at::kHalf     ? NC_F16
                                  : -1;
}

template <class... What>
int32_t checked_dtype(at::ScalarType dtype, const What&... what) {
  const int32_t number = dtype_number(dtype);
  if (number < 0)
    type_error(what..., " is ", c10::toString(dtype), ": float32, bfloat16 or float16 is needed");
  return number;
}

// What never changes in a tensor that a kernel reads as a run of elements. ValueError or TypeError
// if it cannot.
template <class... What>
void check_run(const at::Tensor& tensor, int64_t elements, at::Device device, const What&... what) {
  if (tensor.device() != device)
    value_error(what..., " is on ", tensor.device().str(), ", not on ", device.str());
  if (!tensor.is_contiguous()) value_error(what..., " is not contiguous");
  if (tensor.numel() != elements) {
    value_error(what..., " has ", tensor.numel(), " elements, and ", elements, " are needed");
  }
}

// Whether its storage has all of a plain tensor's elements: FSDP2 frees storages.
inline size_t end_of(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          tensor.storage_offset());
}
inline bool has_memory(const at::Tensor& tensor) {
  return tensor.storage().nbytes() >= end_of(tensor);
}
template <class... What>
void check_there(const at::Tensor& tensor, const What&... what) {
  if (tensor.numel() != 0 && !has_memory(tensor)) {
    value_error(what..., " has been freed: its storage has ", tensor.storage().nbytes(),
                " bytes, and its last element ends at ", end_of(tensor),
                ". FSDP2 frees a gathered weight when it reshards its module");
  }
}

// Whether memory holds the elements as they are. torch may put off a change of sign, and keeps no
// memory at all for the zeros that forward-mode derivatives begin with.
inline bool is_resolved(const at::Tensor& tensor) {
  return !tensor.is_neg() && !tensor._is_zerotensor();
}

// The address of a plain tensor's elements as they lie now: storages move.
template <class... What>
void* address_of(const at::Tensor& tensor, const What&... what) {
  if (!is_plain(tensor)) type_error(what..., " is not a plain tensor");
  if (!is_resolved(tensor))
    value_error(what..., " has a sign or zeros that torch has put off: clone it first");
  check_there(tensor, what...);
  return const_cast<void*>(tensor.const_data_ptr());
}

// Both, of numbers that must be of one dtype.
template <class... What>
void* checked_address(const at::Tensor& tensor, at::ScalarType dtype, int64_t elements,
                      at::Device device, const What&... what) {
  if (tensor.scalar_type() != dtype)
    type_error(what..., " is ", c10::toString(tensor.scalar_type()), ", not ",
               c10::toString(dtype));
  check_run(tensor, elements, device, what...);
  return address_of(tensor, what...);
}

template <class... What>
float* checked_floats(const at::Tensor& tensor, int64_t elements, at::Device device,
                      const What&... what) {
  return static_cast<float*>(checked_address(tensor, at::kFloat, elements, device, what...));
}

// The elements of a plain tensor, as its storage has them. Of many that are
// not in the host's caches it looks at storages alone: a tensor is another place in memory.
class StoredElements {
 public:
  // Without the first `offset` bytes.
  explicit StoredElements(const at::Tensor& tensor, int64_t offset = 0)
      : storage_(tensor.storage()),
        begin_(tensor.storage_offset() * tensor.itemsize() + offset),
        end_(tensor.numel() == 0 ? 0 : end_of(tensor)) {}

  // Whether they have not been freed.
  bool are_there() const { return memory().nbytes() >= end_; }
  // Where they lie now.
  void* address() const {
    return static_cast<uint8_t*>(const_cast<void*>(memory().data())) + begin_;
  }

 private:
  const c10::StorageImpl& memory() const { return *storage_.unsafeGetStorageImpl(); }

  c10::Storage storage_;
  size_t begin_, end_;  // bytes
};

// Where the elements of a plain tensor were, and what they were.
struct Place {
  explicit Place(const at::Tensor& tensor)
      : memory(memory_of(tensor).data()),
        offset(tensor.storage_offset()),
        elements(tensor.numel()),
        dtype(tensor.scalar_type()) {}

  // Whether a tensor's elements are there, as many of the same dtype. Every step asks it of every
  // tensor, so it asks the storage itself.
  bool is_of(const at::Tensor& tensor) const {
    const c10::StorageImpl& storage = memory_of(tensor);
    return storage.data() == memory && tensor.storage_offset() == offset &&
           tensor.numel() == elements && tensor.scalar_type() == dtype && tensor.is_contiguous() &&
           storage.nbytes() >= (offset + elements) * tensor.itemsize();
  }

  const void* memory;
  int64_t offset, elements;
  at::ScalarType dtype;

 private:
  static const c10::StorageImpl& memory_of(const at::Tensor& tensor) {
    return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }
};

// A tensor that is kept, and where it was.
struct PlacedTensor {
  explicit PlacedTensor(at::Tensor its_tensor) : tensor(std::move(its_tensor)), place(tensor) {}
  bool is_in_place() const { return place.is_of(tensor); }

  at::Tensor tensor;
  Place place;
};

}  // namespace narrowcast
