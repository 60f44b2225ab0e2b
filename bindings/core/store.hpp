// The record of a quantized matrix: its bytes, and the value that they are made from. Python's
// Store adds the weight's name and options, and its place among shards.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "bindings/core/buffers.hpp"
#include "bindings/core/changes.hpp"
#include "bindings/core/python_tensors.hpp"

namespace narrowcast {

struct Store {
  // `master`: float32 [rows, columns], no tensor of inference mode, whose writes torch does not
  // count. The bytes are still to be made.
  Store(std::shared_ptr<Buffers> its_bytes, OptionalTensor its_master)
      : bytes(std::move(its_bytes)), master(std::move(its_master)) {}

  // Whether the master has been written to since the bytes were made from it, as torch counts.
  bool is_stale() const { return master && made_from_ != master->_version(); }
  // The bytes are those of the master. `by_nearest`: a cast to nearest makes them.
  void mark_fresh(bool by_nearest) {
    if (master) made_from_ = master->_version();
    is_nearest = by_nearest;
  }
  // They are not, whatever torch counts.
  void mark_stale() {
    made_from_.reset();
    note_change();
  }

  std::shared_ptr<Buffers> bytes;
  OptionalTensor master;
  bool is_nearest = false;  // as mark_fresh() was told

 private:
  std::optional<int64_t> made_from_;  // torch's count of writes
};

// The attribute of a quantized weight that has its Store of Python.
inline PyObject* const kStoreName = PyUnicode_InternFromString("_store");

// The store that a quantized weight looks at; null for any other tensor.
inline std::shared_ptr<Store> store_of(const py::handle& tensor) {
  const py::object store = attribute(tensor, kStoreName);
  return store ? py::cast<std::shared_ptr<Store>>(store) : nullptr;
}

}  // namespace narrowcast
