// Owners of flat shards of one matrix, as ranks are, in one process: each has values of its own
// elements alone, and buffers that hold a pattern where it has written nothing. `Memory` is what a
// machine and this program both reach; all is the caller's to wait for.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "runtime/launch/cuts.hpp"
#include "tests/support/adamw.hpp"
#include "tests/support/owned_bytes.hpp"
#include "tests/support/shared_array.hpp"
#include "tests/support/whole_matrix.hpp"

namespace narrowcast::test {

template <class Memory>
class Owners {
 public:
  // `cuts`: where owners after the first begin, in order; equal ones leave owners with nothing.
  Owners(const nc_format& format, const nc_machine& machine, Extent matrix, const State& state,
         std::vector<int64_t> cuts, const nc_history& history)
      : format_(format),
        machine_(machine),
        matrix_(matrix),
        writes_columnwise_(!format.columnwise_derived),
        cuts_(format, matrix, writes_columnwise_, cuts, 0),
        ends_(std::move(cuts)),
        initial_(static_cast<size_t>(cuts_.amaxes() + cuts_.values())) {
    std::fill(initial_.begin() + cuts_.amaxes(), initial_.end(),
              __builtin_bit_cast(float, INT32_MIN));
    ends_.push_back(matrix.rows * matrix.columns);
    owners_.reserve(ends_.size());
    int64_t begin = 0;
    for (const int64_t end : ends_) {
      owners_.emplace_back(*this, state, begin, end, history);
      begin = end;
    }
  }
  Owners(const Owners&) = delete;
  Owners& operator=(const Owners&) = delete;

  // What quantize_master_weights does on every rank, and its reduction.
  void cast(const nc_launch& options) {
    const bool spans = format_.tensor_amax != 0;
    for (Owner& owner : owners_)
      run(machine_.collect, spans ? owner.all() : owner.ends(/*bytes_alone=*/false), owner, options,
          owner.exchange.data());
    finish(options, /*all_wait=*/machine_.record_amax == nullptr);
  }

  // What an optimizer's step does. `step`: but for the gradient.
  void update(const nc_launch& options, const nc_step& step) {
    const bool waits = adamw_of(machine_).update == nullptr;
    for (Owner& owner : owners_) {
      owner.step = Array<Memory, nc_step>(1, step);
      (*owner.step).grad = owner.first_of(owner.grad);
      run(waits ? adamw_of(machine_).update_amax : adamw_of(machine_).update, owner.all(), owner,
          options, owner.exchange.data());
    }
    finish(options, waits);
  }

  // Empty, or the first thing that is not as the whole cast has it.
  std::string fault(const Quantized& whole, const State& state) const {
    for (size_t i = 0; i < owners_.size(); ++i) {
      std::string fault = fault_of(owners_[i], whole);
      if (fault.empty()) fault = fault_of(owners_[i], state);
      if (!fault.empty())
        return "owner " + std::to_string(i) + " of " + std::to_string(owners_.size()) + ", " +
               std::to_string(owners_[i].begin) + " to " + std::to_string(owners_[i].end) + ": " +
               fault;
    }
    return {};
  }

  // A buffer of an owner; nothing writes columnwise ones that follow from rowwise ones.
  std::span<uint8_t> bytes(size_t owner, int buffer) const {
    return owners_[owner].buffer[static_cast<size_t>(buffer)].all();
  }

  int64_t shared() const { return static_cast<int64_t>(initial_.size()); }

 private:
  struct Owner {
    Owner(const Owners& all_owners, const State& state, int64_t its_begin, int64_t its_end,
          const nc_history& its_history)
        : owners(all_owners),
          begin(its_begin),
          end(its_end),
          value(part_of(state.value)),
          exp_avg(part_of(state.exp_avg)),
          exp_avg_sq(part_of(state.exp_avg_sq)),
          grad(part_of(state.grad)),
          exchange(std::span(owners.initial_)),
          seams(1, owners.cuts_.seams(begin, end)),
          amax(1),
          stored_amax(1),
          history(1, its_history),
          step(1) {
      entry = tensor_of(owners.matrix_);
      entry.seed = 7, entry.step = 3;
      entry.value = first_of(value);
      entry.state[0] = first_of(exp_avg);
      entry.state[1] = first_of(exp_avg_sq);
      for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
        const int64_t bytes = bytes_of(owners.format_, owners.matrix_, b);
        buffer.emplace_back(static_cast<size_t>(bytes), kPoison);
        if (b < NC_COLUMNWISE_DATA || owners.writes_columnwise_) entry.buffer[b] = buffer[b].data();
      }
      entry.amax = owners.format_.tensor_amax ? stored_amax.data() : nullptr;
      entry.history = history.data();
      set_shard(entry, owners.machine_, begin, end, seams.data());
    }

    std::span<const float> part_of(const std::vector<float>& whole) const {
      if (whole.empty()) return {};
      return std::span(whole).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    }
    // Where the matrix's first element would lie.
    void* first_of(const Array<Memory, float>& own) const {
      const uintptr_t first = reinterpret_cast<uintptr_t>(own.data());
      return reinterpret_cast<void*>(first - static_cast<uintptr_t>(begin) * sizeof(float));
    }

    std::vector<nc_tensor> all() const { return {entry}; }
    std::vector<nc_tensor> ends(bool bytes_alone) const {
      return shard_ends(entry, owners.machine_, [&](int64_t cut) {
        return bytes_alone ? owners.cuts_.divides_bytes(cut) : owners.cuts_.divides(cut);
      });
    }

    const Owners& owners;
    int64_t begin, end;
    Array<Memory, float> value, exp_avg, exp_avg_sq, grad, exchange;
    Array<Memory, nc_seams> seams;
    Array<Memory, float> amax, stored_amax;
    Array<Memory, nc_history> history;
    Array<Memory, nc_step> step;
    std::vector<Array<Memory, uint8_t>> buffer;
    nc_tensor entry;
  };

  // What waits for the other owners: the cast of all, or of the shards' ends.
  void finish(const nc_launch& options, bool all_wait) {
    reduce();
    const bool delayed = machine_.record_amax != nullptr;
    for (Owner& owner : owners_) {
      if (delayed) run(machine_.record_amax, owner.all(), owner, options, nullptr);
      run(machine_.cast, all_wait ? owner.all() : owner.ends(/*bytes_alone=*/delayed), owner,
          options, owner.exchange.data());
    }
  }

  // A launch has an amax for each entry: one for the whole shard, unused ones for its ends; and a
  // step if an optimizer takes one.
  void run(nc_function function, std::vector<nc_tensor> tensors, Owner& owner,
           const nc_launch& options, float* exchange) const {
    if (tensors.empty()) return;
    const Array<Memory, float> unused(tensors.size());
    float* amax = tensors.size() == 1 ? owner.amax.data() : unused.data();
    const bool steps = (*owner.step).grad != nullptr;
    const std::vector<nc_step> each(tensors.size(), *owner.step);
    nc_launch launch = launch_of(machine_, tensors.data(), std::ssize(tensors),
                                 steps ? each.data() : nullptr, amax);
    launch.source_bf16 = options.source_bf16;
    launch.stochastic = options.stochastic;
    launch.host_tables = 1;
    launch.exchange = exchange;
    const char* failure = function(&launch);
    REQUIRE(failure == nullptr);
    Memory::wait();
  }

  // The maxima of all owners, of the bits as integers with a sign.
  void reduce() {
    const auto larger = [](float a, float b) {
      return __builtin_bit_cast(int32_t, a) < __builtin_bit_cast(int32_t, b) ? b : a;
    };
    const Owner& first = owners_.front();
    for (const Owner& owner : owners_) {
      *first.amax = larger(*first.amax, *owner.amax);
      std::ranges::transform(first.exchange.all(), owner.exchange.all(),
                             first.exchange.all().begin(), larger);
    }
    for (const Owner& owner : owners_) {
      *owner.amax = *first.amax;
      std::ranges::copy(first.exchange.all(), owner.exchange.all().begin());
    }
  }

  // The bytes of a buffer that an owner writes.
  std::vector<bool> written(const Owner& owner, int buffer) const {
    if (owner.entry.buffer[buffer] == nullptr)
      return std::vector<bool>(owner.buffer[buffer].all().size());
    return owned_bytes(format_, matrix_, buffer, owner.begin, owner.end);
  }

  std::string fault_of(const Owner& owner, const Quantized& whole) const {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
      const std::vector<bool> is_written = written(owner, b);
      for (size_t i = 0; i < is_written.size(); ++i) {
        const uint8_t expected = is_written[i] ? whole.buffer[b][i] : kPoison;
        const uint8_t actual = owner.buffer[b].all()[i];
        if (actual == expected) continue;
        return "byte " + std::to_string(i) + " of buffer " + std::to_string(b) + " is " +
               std::to_string(actual) + ", not " + std::to_string(expected) +
               (is_written[i] ? "" : " (another owner's)");
      }
    }
    if (std::memcmp(owner.stored_amax.data(), &whole.amax, sizeof(float)) != 0)
      return "amax is " + std::to_string(*owner.stored_amax);
    if (std::memcmp(owner.history.data(), &whole.history, sizeof(nc_history)) != 0)
      return "another history";
    return {};
  }

  std::string fault_of(const Owner& owner, const State& state) const {
    const auto same = [&](const Array<Memory, float>& own, const std::vector<float>& whole) {
      const auto part = std::as_bytes(owner.part_of(whole));
      return std::ranges::equal(std::as_bytes(own.all()), part);
    };
    if (!same(owner.value, state.value)) return "another master";
    if (!same(owner.exp_avg, state.exp_avg) || !same(owner.exp_avg_sq, state.exp_avg_sq))
      return "other moments";
    return {};
  }

  const nc_format& format_;
  const nc_machine& machine_;
  Extent matrix_;
  bool writes_columnwise_;
  Cuts cuts_;
  std::vector<int64_t> ends_;
  std::vector<float> initial_;
  std::vector<Owner> owners_;
};

}  // namespace narrowcast::test
