// Errors that reach Python as ValueError, TypeError or NotImplementedError. A message is put
// together from its parts when the error happens, and only then.
#pragma once

#include <pybind11/pybind11.h>

#include <sstream>
#include <string>

namespace narrowcast {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void value_error(const Parts&... parts) {
  throw pybind11::value_error(text(parts...));
}

template <class... Parts>
[[noreturn]] void type_error(const Parts&... parts) {
  throw pybind11::type_error(text(parts...));
}

template <class... Parts>
[[noreturn]] void not_implemented(const Parts&... parts) {
  const pybind11::gil_scoped_acquire python;
  PyErr_SetString(PyExc_NotImplementedError, text(parts...).c_str());
  throw pybind11::error_already_set();
}

}  // namespace narrowcast
