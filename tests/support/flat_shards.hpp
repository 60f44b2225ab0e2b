// A matrix of one format, cut in many ways, on one machine, beside the whole of the CPU.
#pragma once

#include "tests/support/adamw.hpp"
#include "tests/support/owners.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {

inline nc_launch options(bool source_bf16, bool stochastic) {
  nc_launch options{};
  options.source_bf16 = source_bf16;
  options.stochastic = stochastic;
  return options;
}

template <class Memory>
class Subject {
 public:
  Subject(const nc_plugin& plugin, const nc_machine& machine, Extent matrix,
          std::vector<float> values, const nc_launch& launch = {})
      : format_(*plugin.format),
        cpu_(*plugin.cpu),
        machine_(machine),
        matrix_(matrix),
        state_{std::move(values), {}, {}, {}},
        launch_(launch),
        whole_(whole_of(format_, cpu_, matrix, state_, launch, kHistory)) {}

  void check(const std::vector<int64_t>& cuts) const {
    Owners<Memory> owners(format_, machine_, matrix_, state_, cuts, kHistory);
    owners.cast(launch_);
    tell(owners.fault(whole_, state_));
  }

  void check_update(const std::vector<int64_t>& cuts) const {
    const int64_t elements = std::ssize(state_.value);
    State state{state_.value, draw(Kind::kOrdinary, elements, 11),
                draw(Kind::kOrdinary, elements, 12), draw(Kind::kOrdinary, elements, 13)};
    for (float& value : state.exp_avg_sq) value *= value;
    const nc_launch launch = options(/*source_bf16=*/false, launch_.stochastic != 0);
    nc_step step = adamw_step({1e-3, 0.9, 0.95, 1e-8, 0.1, true}, 3);
    Owners<Memory> owners(format_, machine_, matrix_, state, cuts, kHistory);
    owners.update(launch, step);
    const Quantized whole = whole_of(format_, cpu_, matrix_, state, launch, kHistory, &step);
    tell(owners.fault(whole, state));
  }

 private:
  static constexpr nc_history kHistory{.present = 3, .next = 5, .amax = {0.5f, 2}};

  void tell(const std::string& fault) const {
    if (!fault.empty()) CAPTURE(std::string(format_.name));
    CHECK(fault == "");
  }

  const nc_format& format_;
  const nc_machine &cpu_, &machine_;
  Extent matrix_;
  State state_;
  nc_launch launch_;
  Quantized whole_;
};

}  // namespace narrowcast::test
