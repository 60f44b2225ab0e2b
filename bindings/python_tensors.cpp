#include "bindings/python_tensors.hpp"

namespace narrowcast {
namespace {

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

// An attribute by its interned name; a null object if there is none.
py::object attribute(const py::handle& object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw py::error_already_set();
    PyErr_Clear();
  }
  return py::reinterpret_steal<py::object>(value);
}

// DTensor, once it has been imported.
PyTypeObject* dtensor_type() {
  static PyObject* const kType =
      py::object(py::module_::import("torch.distributed.tensor").attr("DTensor")).release().ptr();
  return reinterpret_cast<PyTypeObject*>(kType);
}

}  // namespace

bool is_dtensor(const py::handle& tensor) {
  return PyObject_TypeCheck(tensor.ptr(), dtensor_type());
}

py::object local_of(const py::object& tensor) {
  static PyObject* const kLocalTensor = interned("_local_tensor");
  return is_dtensor(tensor) ? attribute(tensor, kLocalTensor) : tensor;
}

py::object bytes_of(const py::handle& tensor) {
  static PyObject* const kView = interned("_view");
  static PyObject* const kStore = interned("store");
  static PyObject* const kBytes = interned("bytes");
  const py::object view = attribute(tensor, kView);
  if (!view) return {};
  const py::object store = attribute(view, kStore);
  return store ? attribute(store, kBytes) : py::object();
}

}  // namespace narrowcast
