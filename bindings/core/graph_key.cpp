#include "bindings/core/graph_key.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "bindings/core/module.hpp"

namespace narrowcast {
namespace {

// A region of a matrix, perhaps with rows and columns exchanged.
struct Part {
  Box region;
  bool exchanged;
};

struct Kept {
  at::Tensor byte;
  std::shared_ptr<Store> store;
  std::vector<Part> parts;  // each of the one before; none: the store's whole matrix
};

void let_go(void* kept) { delete static_cast<Kept*>(kept); }

const Kept* kept_by(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage()) return nullptr;
  // Without the checks that a trace's tensors fail.
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  return storage._mutable_data_ptr_no_checks().cast_context<Kept>(&let_go);
}

const Kept* checked(const at::Tensor& key) {
  const Kept* const kept = kept_by(key);
  if (kept == nullptr)
    type_error(
        "a compiled function finds the bytes of a weight by a tensor that narrowcast has "
        "given it, and has got a copy of that. Hooks of saved tensors, and CUDA graphs of "
        "weights that FSDP2 gathers, make such copies: leave them out");
  return kept;
}

at::Tensor key_that_keeps(std::shared_ptr<Store> store, std::vector<Part> parts) {
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(store->bytes->device);
  if (!store->bytes->is_plain) return at::empty({1}, options);
  const c10::InferenceMode none(false);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor byte = at::empty({1}, options);
  void* const address = byte.mutable_data_ptr();
  auto* const kept = new Kept{byte, std::move(store), std::move(parts)};
  c10::DataPtr memory(address, kept, &let_go, byte.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 1, std::move(memory));
  return at::empty({0}, options).set_(storage, 0, {1}, {1});
}

}  // namespace

at::Tensor graph_key(std::shared_ptr<Store> store) { return key_that_keeps(std::move(store), {}); }

std::shared_ptr<Buffers> bytes_of_key(const at::Tensor& tensor) {
  if (kept_by(tensor) == nullptr) return nullptr;
  return checked_bytes_of_key(tensor);
}

std::shared_ptr<Buffers> checked_bytes_of_key(const at::Tensor& key) {
  const Kept* const kept = checked(key);
  std::shared_ptr<Buffers> bytes = kept->store->bytes;
  for (const auto& [region, exchanged] : kept->parts) {
    bytes = bytes->part(region);
    if (exchanged) bytes = bytes->exchanged();
  }
  return bytes;
}

void bind_graph_key(py::module_& module) {
  module.def("graph_key", &graph_key, py::arg("store"),
             "uint8 (1,): the tensor by which a graph of torch.compile finds a store, which it "
             "keeps alive.");
  module.def(
      "key_of_part",
      [](const at::Tensor& key, int64_t row, int64_t rows, int64_t column, int64_t columns,
         bool exchanged) {
        const Kept* const kept = checked(key);
        std::vector<Part> parts = kept->parts;
        parts.push_back({{{row, column}, {row + rows, column + columns}}, exchanged});
        return key_that_keeps(kept->store, std::move(parts));
      },
      "The key of a region of what another one is the key of.");
  module.def("bytes_of_key", &bytes_of_key, py::arg("tensor"),
             "The Buffers that a key stands for, as they are now; None where it is no key.");
  module.def("checked_bytes_of_key", &checked_bytes_of_key, py::arg("key"),
             "The same; TypeError where it is no key.");
}

}  // namespace narrowcast
