// Operators of torch, as C++ calls them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace narrowcast {

template <class Signature>
auto typed_operator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

}  // namespace narrowcast
