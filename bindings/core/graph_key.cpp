#include "bindings/core/graph_key.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "bindings/core/module.hpp"

namespace narrowcast {
namespace {

struct Kept {
  at::Tensor byte;
  std::shared_ptr<Store> store;
};

void let_go(void* kept) { delete static_cast<Kept*>(kept); }

}  // namespace

at::Tensor graph_key(std::shared_ptr<Store> store) {
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(store->bytes->device);
  if (!store->bytes->is_plain) return at::empty({1}, options);
  const c10::InferenceMode none(false);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor byte = at::zeros({1}, options);
  void* const address = byte.mutable_data_ptr();
  c10::DataPtr memory(address, new Kept{byte, std::move(store)}, &let_go, byte.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 1, std::move(memory));
  return at::empty({0}, options).set_(storage, 0, {1}, {1});
}

std::shared_ptr<Store> store_of_key(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage()) return nullptr;
  // Without the checks that a trace's tensors fail.
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  const auto* kept = storage._mutable_data_ptr_no_checks().cast_context<Kept>(&let_go);
  return kept == nullptr ? nullptr : kept->store;
}

void bind_graph_key(py::module_& module) {
  module.def("graph_key", &graph_key, py::arg("store"),
             "uint8 (1,): the tensor by which a graph of torch.compile finds a store, which it "
             "keeps alive.");
  module.def(
      "bytes_of_key",
      [](const at::Tensor& tensor) {
        const std::shared_ptr<Store> store = store_of_key(tensor);
        return store ? store->bytes : nullptr;
      },
      py::arg("tensor"), "The Buffers of the store that a tensor is the key of, or None.");
}

}  // namespace narrowcast
