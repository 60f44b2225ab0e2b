// The histories of delayed scaling on the CPU: a few numbers a tensor, so one thread does all.
#pragma once

#include <algorithm>
#include <cstring>

#include "runtime/launch/cpu_entry.hpp"
#include "runtime/launch/cpu_unchanged.hpp"
#include "runtime/numeric/delayed.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Sequence>
void start_history_of(const nc_tensor& tensor, float amax) {
  nc_history& history = *tensor.history;
  history = {};
  history.amax[0] = amax;
  history.present = history.next = typename Sequence::Rule{}(amax).multiplier;
  if (tensor.amax != nullptr) *tensor.amax = amax;
}

template <class Sequence>
void record_amax_of(const nc_tensor& tensor, float amax) {
  nc_history& history = *tensor.history;
  std::memmove(history.amax + 1, history.amax, sizeof(history.amax) - sizeof(amax));
  history.amax[0] = amax;
  const float largest = *std::max_element(history.amax, history.amax + NC_HISTORY_LENGTH);
  history.present = history.next;
  history.next = next_multiplier<typename Sequence::Rule>(largest, history.present);
  if (tensor.amax != nullptr) *tensor.amax = amax;
}

// Runs kAction(tensor, its amax) for every tensor that the launch changes.
template <void (*kAction)(const nc_tensor&, float)>
const char* cpu_for_each_tensor(const nc_launch* launch) {
  if (is_stopped(*launch)) return nullptr;
  const IeeeArithmetic ieee;
  for (int64_t i = 0; i < launch->count; ++i) {
    if (without_gradient(*launch, i) || is_skipped(*launch, i)) continue;
    kAction(launch->tensors[i], launch->amax[i]);
  }
  return nullptr;
}

}  // namespace narrowcast::inline NC_VARIANT
