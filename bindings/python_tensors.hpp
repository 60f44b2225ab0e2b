// What the attributes of a tensor's Python object say of it: the local part of a DTensor, and the
// bytes of a QuantizedTensor.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace narrowcast {

namespace py = pybind11;

bool is_dtensor(const py::handle& tensor);

// The local tensor of a DTensor; any other object itself.
py::object local_of(const py::object& tensor);

// The Bytes that a QuantizedTensor looks at; a null object for any other tensor.
py::object bytes_of(const py::handle& tensor);

}  // namespace narrowcast
