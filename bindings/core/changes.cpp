#include "bindings/core/changes.hpp"

#include <algorithm>

#include "bindings/core/module.hpp"
#include "bindings/core/python_tensors.hpp"

namespace narrowcast {

Watch::Watch(const py::list& stores) : changes_(changes) {
  static PyObject* const kMaster = PyUnicode_InternFromString("master");
  for (const py::handle store : stores) {
    const py::object master = attribute(store, kMaster);
    if (master.is_none()) continue;
    const at::Tensor& value = value_of(master);
    if (value.is_inference()) continue;  // torch does not count its writes
    const c10::VariableVersion& written = value.unsafeGetTensorImpl()->version_counter();
    written_.emplace_back(written, written.current_version());
  }
}

bool Watch::is_quiet() const {
  return changes_ == changes && std::ranges::all_of(written_, [](const auto& one) {
           return one.first.current_version() == one.second;
         });
}

namespace {

// torch counts what is written to a tensor that is made around another, as a DTensor is, for that
// alone. With one count for both whoever watches the inner one sees it.
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
      .def(py::init<const py::list&>(), py::arg("stores"))
      .def_property_readonly("is_quiet", &Watch::is_quiet,
                             "Whether no change has been noted since, of whichever store, and "
                             "nothing has been written to these stores' masters.");
}

}  // namespace narrowcast
