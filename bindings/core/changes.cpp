#include "bindings/core/changes.hpp"

#include <algorithm>

#include "bindings/core/module.hpp"
#include "bindings/core/store.hpp"

namespace narrowcast {

void WriteCounts::add(const at::Tensor& tensor) {
  if (tensor.is_inference()) return;
  const c10::VariableVersion& count = tensor.unsafeGetTensorImpl()->version_counter();
  counts_.emplace_back(count, count.current_version());
}

bool WriteCounts::are_same() const {
  return std::ranges::all_of(
      counts_, [](const auto& one) { return one.first.current_version() == one.second; });
}

void WriteCounts::take() {
  for (auto& [count, value] : counts_) value = count.current_version();
}

Watch::Watch(const std::vector<std::shared_ptr<Store>>& stores) : changes_(changes) {
  for (const std::shared_ptr<Store>& store : stores) {
    if (store->master) written_.add(*store->master);
  }
}

bool Watch::is_quiet() const { return changes_ == changes && written_.are_same(); }

namespace {

// torch counts what is written to a tensor that is made around another, as a DTensor is, for that
// alone. With one count for both a Watch of the inner one sees it.
void share_count(const at::Tensor& outer, const at::Tensor& inner) {
  if (outer.is_inference() || inner.is_inference()) return;  // torch counts nothing of those
  outer.unsafeGetTensorImpl()->set_version_counter(inner.unsafeGetTensorImpl()->version_counter());
}

}  // namespace

void bind_changes(py::module_& module) {
  module.def("note_change", &note_change,
             "A tensor looks at another store, a store has other parts, or bytes are stale.");
  module.def("note_write", &note_write,
             "To be called before bytes of a matrix are made by what torch does not count.");
  module.def(
      "changes", [] { return changes; }, "How many have been noted.");
  module.def("share_count", &share_count, py::arg("outer"), py::arg("inner"),
             "From now on torch counts a write to either as one to both.");
  py::class_<WriteCounts>(module, "WriteCounts",
                          "torch's counts of the writes to tensors, as they are now.")
      .def(py::init([](const std::vector<at::Tensor>& tensors) {
             WriteCounts counts;
             for (const at::Tensor& tensor : tensors) counts.add(tensor);
             return counts;
           }),
           py::arg("tensors"))
      .def_property_readonly("are_same", &WriteCounts::are_same,
                             "Whether nothing has been written since they were taken.")
      .def("take", &WriteCounts::take, "Takes them anew.");
  py::class_<Watch, std::shared_ptr<Watch>>(module, "Watch", "Of some stores, from now on.")
      .def(py::init<const std::vector<std::shared_ptr<Store>>&>(), py::arg("stores"))
      .def_property_readonly("is_quiet", &Watch::is_quiet,
                             "Whether no change has been noted since, of whichever store, and "
                             "nothing has been written to these stores' masters.");
}

}  // namespace narrowcast
