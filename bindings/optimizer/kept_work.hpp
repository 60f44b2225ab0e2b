// What keeps the work of reductions alive that ranks wait for.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <utility>

namespace narrowcast {

// gloo's threads let go of a work some time after it has ended. Whoever drops the last reference
// takes Python's lock to free its tensors, which aborts the process if the interpreter is exiting
// by then. So the last ones are kept, about as many as a step has.
inline void keep_work(pybind11::object work) {
  static auto& kept = *new std::array<pybind11::object, 4>;
  static size_t next = 0;
  kept[next++ % kept.size()] = std::move(work);
}

}  // namespace narrowcast
