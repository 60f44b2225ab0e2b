// Facts from the attributes of a tensor's Python object: the local part of a DTensor.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/core/errors.hpp"

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

inline bool is_dtensor(const py::handle& tensor) {
  static PyObject* const kType =
      py::object(py::module_::import("torch.distributed.tensor").attr("DTensor")).release().ptr();
  return PyObject_TypeCheck(tensor.ptr(), reinterpret_cast<PyTypeObject*>(kType));
}

// The local tensor of a DTensor; any other object itself.
inline py::object local_of(const py::object& tensor) {
  static PyObject* const kLocalTensor = PyUnicode_InternFromString("_local_tensor");
  return is_dtensor(tensor) ? attribute(tensor, kLocalTensor) : tensor;
}

}  // namespace narrowcast
