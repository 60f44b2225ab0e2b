// What the attributes of a tensor's Python object say of it: the local part of a DTensor, and the
// bytes of a QuantizedTensor.
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

// What the store of a QuantizedTensor has by an interned name; a null object for any other tensor.
inline py::object of_store(const py::handle& tensor, PyObject* name) {
  static PyObject* const kView = PyUnicode_InternFromString("_view");
  static PyObject* const kStore = PyUnicode_InternFromString("store");
  const py::object view = attribute(tensor, kView);
  if (!view) return {};
  const py::object store = attribute(view, kStore);
  return store ? attribute(store, name) : py::object();
}

// The Buffers that a QuantizedTensor looks at.
inline py::object bytes_of(const py::handle& tensor) {
  static PyObject* const kBytes = PyUnicode_InternFromString("bytes");
  return of_store(tensor, kBytes);
}

// Its Master, or None.
inline py::object master_of(const py::handle& tensor) {
  static PyObject* const kMaster = PyUnicode_InternFromString("master");
  return of_store(tensor, kMaster);
}

// The value of a Master of Python's.
inline const at::Tensor& value_of(const py::handle& master) {
  static PyObject* const kValue = PyUnicode_InternFromString("value");
  const py::object value = attribute(master, kValue);
  if (!value || !THPVariable_Check(value.ptr())) type_error("a master is no tensor");
  return THPVariable_Unpack(value.ptr());
}

}  // namespace narrowcast
