// From a dtype, known when a kernel runs, to the C++ type of its elements.
#pragma once

#include "runtime/numeric/narrow.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

// Calls action with a null pointer to the type.
template <class Action>
NC_MACHINE void with_dtype(int32_t dtype, const Action& action) {
  switch (dtype) {
    case NC_BF16:
      return action(static_cast<Bf16*>(nullptr));
    case NC_F16:
      return action(static_cast<F16*>(nullptr));
    default:
      return action(static_cast<float*>(nullptr));
  }
}

}  // namespace narrowcast::inline NC_VARIANT
