// Pieces of work, as the tiles of a launch, on the caller's threads.
#pragma once

#include "runtime/launch/cpu_entry.hpp"
#include "runtime/launch/cpu_unchanged.hpp"
#include "runtime/tile/stream.hpp"

namespace narrowcast::inline NC_VARIANT {

// Runs kAction(argument, number) for every number below `count`, with IEEE arithmetic on each
// thread.
template <class Argument, void (*kAction)(const Argument&, int64_t)>
const char* cpu_for_each(const Argument* argument, int64_t count) {
  constexpr auto kBody = [](void* context, int64_t begin, int64_t end) {
    const IeeeArithmetic ieee;
    for (int64_t number = begin; number < end; ++number)
      kAction(*static_cast<const Argument*>(context), number);
    finish_streams();
  };
  void* context = const_cast<Argument*>(argument);
  if (argument->parallel_for == nullptr) {
    kBody(context, 0, count);
  } else {
    argument->parallel_for(count, kBody, context);
  }
  return nullptr;
}

// The same for every tile of a launch.
template <void (*kAction)(const nc_launch&, int64_t)>
const char* cpu_for_each_tile(const nc_launch* launch) {
  if (is_stopped(*launch)) return nullptr;
  return cpu_for_each<nc_launch, kAction>(launch, launch->tiles);
}

}  // namespace narrowcast::inline NC_VARIANT
