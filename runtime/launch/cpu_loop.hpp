// All tiles of a launch on the caller's threads.
#pragma once

#include "runtime/launch/cpu_entry.hpp"
#include "runtime/launch/cpu_unchanged.hpp"
#include "runtime/tile/stream.hpp"

namespace narrowcast::inline NC_VARIANT {

// Runs kAction(launch, tile number) for every tile, with IEEE arithmetic on each thread.
template <void (*kAction)(const nc_launch&, int64_t)>
const char* cpu_for_each_tile(const nc_launch* launch) {
  if (is_stopped(*launch)) return nullptr;
  constexpr auto kBody = [](void* context, int64_t begin, int64_t end) {
    const IeeeArithmetic ieee;
    for (int64_t tile = begin; tile < end; ++tile)
      kAction(*static_cast<const nc_launch*>(context), tile);
    finish_streams();
  };
  void* context = const_cast<nc_launch*>(launch);
  if (launch->parallel_for == nullptr) {
    kBody(context, 0, launch->tiles);
  } else {
    launch->parallel_for(launch->tiles, kBody, context);
  }
  return nullptr;
}

}  // namespace narrowcast::inline NC_VARIANT
