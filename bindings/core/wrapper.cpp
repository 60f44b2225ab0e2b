// The storage that torch gives the wrapper of a QuantizedTensor: it has no memory.
#include <c10/core/StorageImpl.h>

#include "bindings/core/module.hpp"

namespace narrowcast {
namespace {

// What C++ is told that asks a tensor for its address and asks Python nothing.
constexpr const char* kNoMemory =
    "a QuantizedTensor has no memory of values that could be read: it keeps codes and scales in "
    "several buffers. Use dequantize(), which makes a plain tensor, or the buffers themselves "
    "(rowwise_data, rowwise_scale_inv, ...)";

}  // namespace

void bind_wrapper(py::module_& module) {
  module.def(
      "withhold_memory",
      [](const at::Tensor& wrapper) {
        wrapper.storage()
            .unsafeGetStorageImpl()
            ->release_data_and_set_meta_custom_data_ptr_error_msg_(kNoMemory);
      },
      "Asking a wrapper for its memory is an error from now on, instead of a null pointer.");
}

}  // namespace narrowcast
