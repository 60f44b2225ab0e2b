// The record of a quantized matrix: its bytes, and the value that they are made from. Python's
// Store adds the weight's name and options, and its place among shards.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/core/buffers.hpp"
#include "bindings/core/changes.hpp"
#include "bindings/core/python_tensors.hpp"

namespace narrowcast {

struct Store {
  // `master`: float32 or bfloat16 [rows, columns], no tensor of inference mode, whose writes torch
  // does not count. The bytes are still to be made.
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

  // A residual is an optimizer's, with eight bits more of each number of a bfloat16 master. It is
  // of the master that a step has left with it, until that is written to; and if it was itself
  // written to since, as a load does, or no step has noted it yet, of the master as it is found.
  bool is_current(const at::Tensor& residual) const {
    const auto note = std::ranges::find(noted_, residual.unsafeGetTensorImpl(), &Note::target);
    return note == noted_.end() || note->written != residual._version() ||
           note->master_written == master->_version();
  }
  // A step has left master and residual.
  void note_residual(const at::Tensor& residual) {
    std::erase_if(noted_, [&](const Note& note) {
      return note.residual.expired() || note.target() == residual.unsafeGetTensorImpl();
    });
    noted_.push_back({Weak(residual.getIntrusivePtr()), residual._version(), master->_version()});
  }
  // The master has taken the place of another store's, which is a write for all residuals of that.
  void replace(const Store& other) {
    noted_ = other.noted_;
    for (Note& note : noted_) note.master_written.reset();
  }

  std::shared_ptr<Buffers> bytes;
  OptionalTensor master;
  bool is_nearest = false;  // as mark_fresh() was told

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Note {
    Weak residual;
    int64_t written;  // torch's counts of writes
    std::optional<int64_t> master_written;
    const c10::TensorImpl* target() const { return residual._unsafe_get_target(); }
  };

  std::optional<int64_t> made_from_;  // torch's count of writes
  std::vector<Note> noted_;           // of each optimizer that has one
};

// The attribute of a quantized weight that has its Store of Python.
inline PyObject* const kStoreName = PyUnicode_InternFromString("_store");

// The store that a quantized weight looks at; null for any other tensor.
inline std::shared_ptr<Store> store_of(const py::handle& tensor) {
  const py::object store = attribute(tensor, kStoreName);
  return store ? py::cast<std::shared_ptr<Store>>(store) : nullptr;
}

}  // namespace narrowcast
