#include "bindings/core/changes.hpp"

#include <algorithm>

#include "bindings/core/module.hpp"
#include "bindings/core/store.hpp"

namespace narrowcast {

Watch::Watch(const std::vector<std::shared_ptr<Store>>& stores) : changes_(changes) {
  for (const std::shared_ptr<Store>& store : stores) {
    if (!store->master) continue;
    const c10::VariableVersion& count = store->master->unsafeGetTensorImpl()->version_counter();
    written_.emplace_back(count, count.current_version());
  }
}

bool Watch::is_quiet() const {
  return changes_ == changes && std::ranges::all_of(written_, [](const auto& one) {
           return one.first.current_version() == one.second;
         });
}

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
  py::class_<Watch, std::shared_ptr<Watch>>(module, "Watch", "Of some stores, from now on.")
      .def(py::init<const std::vector<std::shared_ptr<Store>>&>(), py::arg("stores"))
      .def_property_readonly("is_quiet", &Watch::is_quiet,
                             "Whether no change has been noted since, of whichever store, and "
                             "nothing has been written to these stores' masters.");
}

}  // namespace narrowcast
