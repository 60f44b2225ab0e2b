// What a step changes of a Python Store (narrowcast.tensor.store). Attributes are set, and no code
// of Python's runs; so the handler of a signal, which may raise between any two of its
// instructions, finds a step done or not begun.
#pragma once

#include "bindings/core/buffers.hpp"
#include "bindings/core/changes.hpp"
#include "bindings/core/python_tensors.hpp"

namespace narrowcast {

class StoreHandle {
 public:
  // Of the store that a QuantizedTensor looks at.
  explicit StoreHandle(const py::handle& tensor)
      : view_(attribute(tensor, kView)), store_(attribute(view_, kStore)) {}

  // Whether a tensor still looks at it, and it still has these bytes. A view's store never changes.
  bool is_of(const py::handle& tensor, const py::handle& bytes) const {
    return attribute(tensor, kView).is(view_) && attribute(store_, kBytes).is(bytes);
  }

  // The bytes are those of the master: Master.mark_fresh(). Few are stale before a step.
  void mark_fresh() const {
    const py::object master = attribute(store_, kMaster);
    note(master);
    if (attribute(master, kStale).is(py::bool_(false))) return;
    set(master, kStale, py::bool_(false));
    set(master, kSaved, py::none());
  }

  // The master is new, and its bytes are not yet made: Store.mark_stale() of all rows.
  void mark_stale() const {
    const py::object master = attribute(store_, kMaster);
    note(master);
    note_change();
    set(master, kStale, py::bool_(true));
    set(master, kSaved, py::none());
    const auto bytes = py::cast<std::shared_ptr<Buffers>>(attribute(store_, kBytes));
    if (bytes->history) bytes->history->zero_();
    set(store_, kUsed, attribute(store_, kRows));
  }

 private:
  // All that has been written to the value is known: Master.sync_version().
  static void note(const py::object& master) {
    if (attribute(master, kVersion).is_none()) return;
    set(master, kVersion, py::int_(value_of(master)._version()));
  }
  static void set(const py::handle& object, PyObject* name, const py::handle& value) {
    if (PyObject_SetAttr(object.ptr(), name, value.ptr()) != 0) throw py::error_already_set();
  }

  inline static PyObject* const kView = PyUnicode_InternFromString("_view");
  inline static PyObject* const kStore = PyUnicode_InternFromString("store");
  inline static PyObject* const kMaster = PyUnicode_InternFromString("master");
  inline static PyObject* const kVersion = PyUnicode_InternFromString("version");
  inline static PyObject* const kStale = PyUnicode_InternFromString("stale");
  inline static PyObject* const kSaved = PyUnicode_InternFromString("saved");
  inline static PyObject* const kBytes = PyUnicode_InternFromString("bytes");
  inline static PyObject* const kRows = PyUnicode_InternFromString("rows");
  inline static PyObject* const kUsed = PyUnicode_InternFromString("used");

  py::object view_, store_;
};

}  // namespace narrowcast
