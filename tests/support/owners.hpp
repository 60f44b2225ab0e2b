// Owners of flat shards of one matrix, as ranks are, in one process: each has values of its own
// elements alone, and buffers that hold a pattern where it has written nothing.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>

#include "runtime/launch/cuts.hpp"
#include "tests/support/quantized.hpp"

namespace narrowcast::test {

inline constexpr uint8_t kPoison = 0xa5;

inline int32_t bits_of_float(float x) { return __builtin_bit_cast(int32_t, x); }

// The whole matrix cast as its owners cast it: with a delayed scale, as after an update.
inline Quantized whole_cast(const nc_format& format, const nc_machine& machine, Extent matrix,
                            const std::vector<float>& values, const nc_launch& options,
                            const nc_history& history) {
  Quantized whole(format, matrix);
  whole.history = history;
  nc_tensor tensor = tensor_of(matrix);
  tensor.value = const_cast<float*>(values.data());
  tensor.seed = 7, tensor.step = 3;
  whole.connect(format, tensor);
  float amax = 0;
  nc_launch launch = launch_of(machine, &tensor, 1, nullptr, &amax);
  launch.source_bf16 = options.source_bf16;
  launch.stochastic = options.stochastic;
  const auto functions = present({machine.reduce_amax, machine.record_amax, machine.cast});
  REQUIRE(run_all(functions, launch) == nullptr);
  return whole;
}

class Owners {
 public:
  // `cuts`: where owners after the first begin, in order; equal ones leave owners with nothing.
  Owners(const nc_format& format, const nc_machine& machine, Extent matrix,
         const std::vector<float>& values, std::vector<int64_t> cuts, const nc_history& history)
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
      owners_.emplace_back(*this, values, begin, end, history);
      begin = end;
    }
  }
  Owners(const Owners&) = delete;
  Owners& operator=(const Owners&) = delete;

  // What quantize_master_weights does on every rank, and its reduction.
  void cast(const nc_launch& options) {
    const bool spans = format_.tensor_amax != 0, delayed = machine_.record_amax != nullptr;
    for (Owner& owner : owners_)
      run(machine_.collect, spans ? owner.all() : owner.ends(/*bytes_alone=*/false), owner, options,
          owner.exchange.data());
    reduce();
    for (Owner& owner : owners_) {
      if (delayed) run(machine_.record_amax, owner.all(), owner, options, nullptr);
      run(machine_.cast, delayed ? owner.ends(/*bytes_alone=*/true) : owner.all(), owner, options,
          owner.exchange.data());
    }
  }

  // Empty, or the first thing that is not as the whole cast has it.
  std::string fault(const Quantized& whole) const {
    for (size_t i = 0; i < owners_.size(); ++i) {
      const std::string fault = fault_of(owners_[i], whole);
      if (!fault.empty())
        return "owner " + std::to_string(i) + " of " + std::to_string(owners_.size()) + ", " +
               std::to_string(owners_[i].begin) + " to " + std::to_string(owners_[i].end) + ": " +
               fault;
    }
    return {};
  }

  int64_t shared() const { return static_cast<int64_t>(initial_.size()); }

 private:
  struct Owner {
    Owner(const Owners& all_owners, const std::vector<float>& values, int64_t its_begin,
          int64_t its_end, const nc_history& history)
        : owners(all_owners),
          begin(its_begin),
          end(its_end),
          own(values.begin() + begin, values.begin() + end),
          exchange(owners.initial_),
          seams(owners.cuts_.seams(begin, end)),
          bytes(owners.format_, owners.matrix_) {
      for (std::vector<uint8_t>& buffer : bytes.buffer)
        std::fill(buffer.begin(), buffer.end(), kPoison);
      bytes.history = history;
      entry = tensor_of(owners.matrix_);
      entry.seed = 7, entry.step = 3;
      const uintptr_t first = reinterpret_cast<uintptr_t>(own.data());
      entry.value = reinterpret_cast<void*>(first - static_cast<uintptr_t>(begin) * sizeof(float));
      bytes.connect(owners.format_, entry);
      for (int b = NC_COLUMNWISE_DATA; b < NC_BUFFER_COUNT; ++b) {
        if (!owners.writes_columnwise_) entry.buffer[b] = nullptr;
      }
      set_shard(entry, owners.machine_, begin, end, &seams);
    }

    std::vector<nc_tensor> all() const { return {entry}; }
    std::vector<nc_tensor> ends(bool bytes_alone) const {
      return shard_ends(entry, owners.machine_, [&](int64_t cut) {
        return bytes_alone ? owners.cuts_.divides_bytes(cut) : owners.cuts_.divides(cut);
      });
    }

    const Owners& owners;
    int64_t begin, end;
    std::vector<float> own, exchange;
    nc_seams seams;
    Quantized bytes;
    nc_tensor entry;
    float amax = 0;
  };

  void run(nc_function function, std::vector<nc_tensor> tensors, Owner& owner,
           const nc_launch& options, float* exchange) const {
    if (tensors.empty()) return;
    std::vector<float> amaxes(tensors.size(), owner.amax);
    nc_launch launch =
        launch_of(machine_, tensors.data(), std::ssize(tensors), nullptr, amaxes.data());
    launch.source_bf16 = options.source_bf16;
    launch.stochastic = options.stochastic;
    launch.exchange = exchange;
    REQUIRE(function(&launch) == nullptr);
    owner.amax = amaxes[0];
  }

  // The maxima of all owners, of the bits as integers with a sign.
  void reduce() {
    const auto larger = [](float a, float b) {
      return bits_of_float(a) < bits_of_float(b) ? b : a;
    };
    Owner& first = owners_.front();
    for (const Owner& owner : owners_) {
      first.amax = larger(first.amax, owner.amax);
      std::ranges::transform(first.exchange, owner.exchange, first.exchange.begin(), larger);
    }
    for (Owner& owner : owners_) {
      owner.amax = first.amax;
      owner.exchange = first.exchange;
    }
  }

  // The bytes of a buffer that an owner writes: of its elements, and of the blocks that hold them.
  std::vector<bool> written(const Owner& owner, int buffer) const {
    std::vector<bool> bytes(owner.bytes.buffer[buffer].size());
    if (owner.entry.buffer[buffer] == nullptr) return bytes;
    const Layout& layout = layout_of(format_, buffer);
    const auto mark = [&](int64_t from, int64_t count) {
      std::fill_n(bytes.begin() + from, count, true);
    };
    if (buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA) {
      for (int64_t i = owner.begin; i < owner.end; ++i) {
        const BitPosition at =
            element_position(layout, matrix_, i / matrix_.columns, i % matrix_.columns);
        mark(at.byte, at.shift + layout.element_bits > 8 ? 2 : 1);
      }
      return bytes;
    }
    if (spans_tensor(layout)) {
      mark(0, layout.scale_bytes);
      return bytes;
    }
    std::vector<bool> touched(bytes.size());  // by block, at its first element's scale
    const auto first_of = [&](int64_t row, int64_t column) {
      return scale_index(layout, matrix_, row / layout.block_rows * layout.block_rows,
                         column / layout.block_columns * layout.block_columns);
    };
    for (int64_t i = owner.begin; i < owner.end; ++i)
      touched[static_cast<size_t>(first_of(i / matrix_.columns, i % matrix_.columns))] = true;
    for (int64_t row = 0; row < matrix_.rows; row += layout.scale_per_rows) {
      for (int64_t column = 0; column < matrix_.columns; column += layout.scale_per_columns) {
        if (touched[static_cast<size_t>(first_of(row, column))])
          mark(scale_index(layout, matrix_, row, column) * layout.scale_bytes, layout.scale_bytes);
      }
    }
    return bytes;
  }

  std::string fault_of(const Owner& owner, const Quantized& whole) const {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
      const std::vector<bool> is_written = written(owner, b);
      for (size_t i = 0; i < is_written.size(); ++i) {
        const uint8_t expected = is_written[i] ? whole.buffer[b][i] : kPoison;
        if (owner.bytes.buffer[b][i] == expected) continue;
        return "byte " + std::to_string(i) + " of buffer " + std::to_string(b) + " is " +
               std::to_string(owner.bytes.buffer[b][i]) + ", not " + std::to_string(expected) +
               (is_written[i] ? "" : " (another owner's)");
      }
    }
    if (std::memcmp(&owner.bytes.amax, &whole.amax, sizeof(float)) != 0)
      return "amax is " + std::to_string(owner.bytes.amax);
    if (std::memcmp(&owner.bytes.history, &whole.history, sizeof(nc_history)) != 0)
      return "another history";
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
