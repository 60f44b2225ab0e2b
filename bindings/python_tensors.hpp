// What the attributes of a tensor's Python object say of it: the local part of a DTensor, and the
// bytes of a QuantizedTensor.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace narrowcast {

namespace py = pybind11;

// An attribute by its interned name; a null object if there is none.
inline py::object attribute(const py::handle& object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw py::error_already_set();
    PyErr_Clear();
  }
  return py::reinterpret_steal<py::object>(value);
}

bool is_dtensor(const py::handle& tensor);

// The local tensor of a DTensor; any other object itself.
py::object local_of(const py::object& tensor);

// The Bytes that a QuantizedTensor looks at; a null object for any other tensor.
py::object bytes_of(const py::handle& tensor);

// Whether a tensor still looks at these bytes.
inline bool holds(const py::handle& tensor, const py::handle& bytes) {
  return bytes_of(tensor).is(bytes);
}

}  // namespace narrowcast
