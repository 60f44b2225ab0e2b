// The changes that a step makes in a Python Store (narrowcast.tensor.store).
#pragma once

#include "bindings/core/buffers.hpp"
#include "bindings/core/changes.hpp"
#include "bindings/core/python_tensors.hpp"

namespace narrowcast {

class StoreHandle {
 public:
  // Of the store that a QuantizedTensor looks at.
  explicit StoreHandle(const py::handle& tensor)
      : view_(attribute(tensor, kView)),
        store_(attribute(view_, kStore)),
        bytes_(attribute(store_, kBytes)),
        master_(attribute(store_, kMaster)) {}

  // Whether a tensor still looks at it, and it still has these bytes and this master. A view's
  // store never changes.
  bool is_of(const py::handle& tensor) const {
    return attribute(tensor, kView).is(view_) && attribute(store_, kBytes).is(bytes_) &&
           attribute(store_, kMaster).is(master_);
  }

  const Buffers& bytes() const { return py::cast<const Buffers&>(bytes_); }
  // The master's value, [rows, columns].
  const at::Tensor& value() const { return value_of(master_); }

  // The bytes are those of the master: Master.mark_fresh(). Few are stale before a step.
  void mark_fresh() const {
    sync_version();
    if (attribute(master_, kStale).is(py::bool_(false))) return;
    set(master_, kStale, py::bool_(false));
    set(master_, kSaved, py::none());
  }

  // The master is new, and its bytes are not yet made: Store.mark_stale() of all rows.
  void mark_stale() const {
    sync_version();
    note_change();
    set(master_, kStale, py::bool_(true));
    set(master_, kSaved, py::none());
    if (bytes().history) bytes().history->zero_();
    set(store_, kUsed, attribute(store_, kRows));
  }

 private:
  // All that has been written to the value is known: Master.sync_version().
  void sync_version() const {
    if (attribute(master_, kVersion).is_none()) return;
    set(master_, kVersion, py::int_(value()._version()));
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

  py::object view_, store_, bytes_, master_;
};

}  // namespace narrowcast
