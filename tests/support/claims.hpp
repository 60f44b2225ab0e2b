// The claims of the list, for the CPU: each counts its own faults in a range of bit patterns.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/claim_list.hpp"

namespace narrowcast::test {

struct Claim {
  std::string name;
  // How many of the patterns from `first` to `last`, both included, the library has wrong.
  std::function<int64_t(uint32_t first, uint32_t last)> wrong;
  std::vector<uint32_t> samples;  // where it is most in doubt
};

// Faults among the patterns [first, end), which are few enough for an int. The compiler makes
// vectors of the loop.
template <class Function, class Definition>
int count_faults(const Function& function, const Definition& definition, uint64_t first,
                 int count) {
  int faults = 0;
  for (int i = 0; i < count; ++i) {
    const float x = float_of(static_cast<uint32_t>(first) + static_cast<uint32_t>(i));
    faults += function(x) != definition(x);
  }
  return faults;
}

// The same for [first, end) of any length.
template <class Function, class Definition>
int64_t count_all_faults(const Function& function, const Definition& definition, uint64_t first,
                         uint64_t end) {
  constexpr uint64_t kMost = 1 << 16;
  int64_t faults = 0;
  for (; first < end; first += kMost) {
    faults +=
        count_faults(function, definition, first, static_cast<int>(std::min(end - first, kMost)));
  }
  return faults;
}

class Collector {
 public:
  std::vector<Claim> claims;

  template <class Function>
  void steps(std::string name, const Function& function, const Steps& steps) {
    const auto wrong = [=](uint32_t first, uint32_t last) {
      const auto after = [](uint32_t bits, const Step& step) { return bits < step.first; };
      auto step = std::upper_bound(steps.begin(), steps.end(), first, after) - 1;
      int64_t faults = 0;
      for (uint64_t begin = first; begin <= last; ++step) {
        const auto next = step + 1;
        const uint64_t next_first = next == steps.end() ? uint64_t{1} << 32 : next->first;
        const uint64_t end = std::min(next_first, uint64_t{last} + 1);
        const auto constant = [value = step->value](float) { return value; };
        faults += count_all_faults(function, constant, begin, end);
        begin = end;
      }
      return faults;
    };
    std::vector<uint32_t> firsts;
    for (const Step& step : steps) firsts.push_back(step.first);
    claims.push_back({std::move(name), wrong, firsts});
  }

  template <class Function, class Definition>
  void equal(std::string name, const Function& function, const Definition& definition,
             std::vector<uint32_t> samples) {
    const auto wrong = [=](uint32_t first, uint32_t last) {
      return count_all_faults(function, definition, first, uint64_t{last} + 1);
    };
    claims.push_back({std::move(name), wrong, std::move(samples)});
  }
};

inline std::vector<Claim> all_claims() {
  Collector collector;
  visit_claims(collector);
  return std::move(collector.claims);
}

}  // namespace narrowcast::test
