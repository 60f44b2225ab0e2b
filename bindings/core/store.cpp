#include "bindings/core/store.hpp"

#include "bindings/core/module.hpp"

namespace narrowcast {

void bind_store(py::module_& module) {
  py::class_<Store, std::shared_ptr<Store>>(
      module, "Store", "The bytes of a matrix, and the value that they are made from.")
      .def(py::init<std::shared_ptr<Buffers>, OptionalTensor>(), py::arg("bytes"),
           py::arg("master"))
      .def_readwrite("bytes", &Store::bytes,
                     "A Buffers. Another may take its place, of the same format and shape.")
      .def_readwrite("master", &Store::master,
                     "[rows, columns], float32 or bfloat16: the value, or None where the bytes "
                     "alone are it.")
      .def_property_readonly("is_stale", &Store::is_stale,
                             "Whether the master was written to since the bytes were made.")
      .def_readonly("is_nearest", &Store::is_nearest,
                    "Whether a cast of the master to nearest makes the bytes, if they are fresh.")
      .def("mark_fresh", &Store::mark_fresh, py::arg("by_nearest") = false,
           "The bytes are those of the master. `by_nearest`: a cast to nearest makes them.")
      .def("mark_stale", &Store::mark_stale, "They are not, whatever torch counts.")
      .def("is_current", &Store::is_current, py::arg("residual"),
           "Whether an optimizer's residual is of the master as it is now.")
      .def("replace", &Store::replace, py::arg("other"),
           "The master has taken the place of another store's: residuals are of that one.");
}

}  // namespace narrowcast
