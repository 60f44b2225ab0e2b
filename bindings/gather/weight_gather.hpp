// What FSDP2's all-gathers carry of one sharded weight, and where it arrives: docs/sharding.md.
#pragma once

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

#include "bindings/core/buffers.hpp"
#include "bindings/gather/copy_table.hpp"
#include "bindings/gather/spanning.hpp"

namespace narrowcast {

// The gathers of one sharded weight. Payloads and room are laid out once, because FSDP2 fixes a
// payload's size at the first gather; each gather fills them anew.
class WeightGather {
 public:
  // `shard`: this rank's bytes, of at most shard_rows of the weight's `rows` rows. `both`: every
  // gather serves both passes. `shares`: what all ranks pack and unpack travels in one payload with
  // that of other weights; FSDP2 handles each payload by itself.
  WeightGather(std::shared_ptr<Buffers> shard, int64_t rows, int64_t shard_rows, int64_t world,
               bool both, bool shares)
      : shard_(std::move(shard)) {
    std::vector<int32_t> asked{NC_FORWARD, NC_BACKWARD};
    if (shard_->facts().columnwise_derived) {
      asked = {NC_FORWARD};
    } else if (both) {
      asked = {NC_BOTH};
    }
    for (const int32_t phase : asked) {
      shard_->plugin.table->route(phase, asked.size() == 1, rows, shard_->columns, shard_rows,
                                  world, &phases_.emplace_back().route);
    }
    if (shares) find_shared();
    for (Phase& phase : phases_) lay_out(phase);
  }

  const Buffers& shard() const { return *shard_; }

  // What this rank sends for a pass: uint8, one-dimensional; the shard's own buffers where they are
  // what travels, else parts of a send buffer, uint8, from `begin` on, which pack() fills. What it
  // shares is filled too, in the same send buffer, but sent by another.
  int64_t send_bytes() const { return send_bytes_; }
  void use_send_buffer(const at::Tensor& memory, int64_t begin) {
    send_buffer_ = memory;
    send_begin_ = begin;
    for (Phase& phase : phases_) {
      const nc_route& route = phase.route;
      phase.sent.assign(own_payloads(phase), at::Tensor());
      for (int i = 0; i < route.segments; ++i) {
        const auto& [buffer, payload, first, last, in_place, as_stored] = route.segment[i];
        if (is_shared(payload)) continue;
        const int64_t at = phase.send_at[payload];
        phase.sent[own_index(payload)] =
            at == kAsStored ? shard_->buffers[buffer]->view({-1}).view(at::kByte)
                            : memory.narrow(0, begin + at, route.payload_bytes[payload]);
      }
    }
  }
  // Its part of the payload that weights share: of each rank, from `begin` on of `bytes` in all,
  // which are the first of the send buffer.
  int64_t shared_bytes() const { return shared_bytes_; }
  void share(int64_t begin, int64_t bytes) {
    shared_begin_ = begin;
    shared_rank_bytes_ = bytes;
  }
  const std::vector<at::Tensor>& payloads(bool backward) const { return of(backward).sent; }

  // Makes room for the whole weight over the receive buffers that payloads arrive in, and in
  // `unpacked`, uint8 of unpacked_bytes(), for what does not arrive as it is stored. `shared`: the
  // receive buffer of the payload that weights share.
  int64_t unpacked_bytes() const { return unpacked_bytes_; }
  void receive_into(const std::vector<at::Tensor>& received, const OptionalTensor& unpacked,
                    const OptionalTensor& shared) {
    received_ = received;
    unpacked_ = unpacked;
    shared_received_ = shared;
    spanning_.clear();
    const OptionalTensor amax = spanning_of(shard_->amax), history = spanning_of(shard_->history);
    for (Phase& phase : phases_) {
      if (std::ssize(received) != own_payloads(phase))
        value_error("FSDP2 brought ", received.size(), " payloads of a weight, and ",
                    own_payloads(phase), " were sent");
      phase.gathered = make_gathered(phase, amax, history);
    }
  }

  // What spans the tensor, in the whole weight: see Spanning.
  void follow_shard() {
    for (Spanning& one : spanning_) one.follow();
  }
  void keep_spanning() {
    for (Spanning& one : spanning_) one.keep();
  }
  // Whether FSDP2 has no memory for the whole weight now.
  bool is_freed() const { return !phases_[0].gathered || phases_[0].gathered->is_freed(); }

  // The whole weight as the gather of a pass brings it; after receive_into().
  const std::shared_ptr<Buffers>& gathered(bool backward) const { return of(backward).gathered; }
  // Whether both passes carry the same.
  bool carries_alike() const { return phases_.size() == 1; }

  // Adds it to what is packed, or unpacked: the parts of which that is asked.
  void add_outgoing(bool backward, CopyTable& copies) const {
    const Phase& phase = of(backward);
    copies.add(phase.route, shard_->rows);
    for (int i = 0; i < phase.route.segments; ++i) {
      const auto& [buffer, payload, first, last, in_place, as_stored] = phase.route.segment[i];
      const int64_t at = phase.send_at[payload];
      if (at == kAsStored) continue;
      shard_->address(buffer);  // says what has been freed
      copies.put_buffer(buffer, *shard_->buffers[buffer]);
      copies.put_payload(payload, send_buffer_,
                         (is_shared(payload) ? shared_begin_ : send_begin_) + at);
    }
  }
  void add_incoming(bool backward, CopyTable& copies) const {
    const Phase& phase = of(backward);
    copies.add(phase.route, 0);
    for (int i = 0; i < phase.route.segments; ++i) {
      const auto& [buffer, payload, first, last, in_place, as_stored] = phase.route.segment[i];
      if (in_place) continue;
      phase.gathered->address(buffer);
      copies.put_buffer(buffer, *phase.gathered->buffers[buffer]);
      if (!is_shared(payload)) {
        copies.put_payload(payload, received_[own_index(payload)], 0);
        continue;
      }
      copies.put_payload(payload, shared_received_.value(), shared_begin_ + phase.send_at[payload]);
      copies.route().payload_bytes[payload] = shared_rank_bytes_;
    }
  }

 private:
  // Parts of the send buffer and of the unpacked memory begin where every dtype and every wide
  // access may.
  static constexpr int64_t kAlignment = 256;
  static constexpr int64_t kSharedAlignment = 16;  // the widest access; what lies between travels
  static constexpr int64_t kAsStored = -1;
  // The gather of one phase, and where its parts lie in the send buffer (or, of payloads that are
  // shared, in their part of it) and in the unpacked memory: kAsStored where a shard's buffer is
  // sent itself, or what arrives is the whole buffer.
  struct Phase {
    nc_route route{};
    std::array<int64_t, NC_MAX_PAYLOADS> send_at{};
    std::array<int64_t, NC_BUFFER_COUNT> unpacked_at{};  // by segment
    std::vector<at::Tensor> sent;
    std::shared_ptr<Buffers> gathered;
  };
  const Phase& of(bool backward) const { return phases_[phases_.size() == 1 ? 0 : backward]; }

  static int64_t claim(int64_t& end, int64_t bytes, int64_t alignment = kAlignment) {
    const int64_t begin = end;
    end += round_up(bytes, alignment);
    return begin;
  }

  // Payloads of which no rank sends a buffer itself, and none arrives in place, in any phase.
  void find_shared() {
    shared_ = (1u << phases_[0].route.payloads) - 1;
    for (const Phase& phase : phases_) {
      for (int i = 0; i < phase.route.segments; ++i) {
        const nc_segment& segment = phase.route.segment[i];
        if (segment.as_stored || segment.in_place) shared_ &= ~(1u << segment.payload);
      }
    }
  }
  bool is_shared(int payload) const { return (shared_ >> payload & 1) != 0; }
  // Among the payloads that are sent by themselves.
  int own_index(int payload) const {
    return payload - std::popcount(shared_ & ((1u << payload) - 1));
  }
  int own_payloads(const Phase& phase) const { return own_index(phase.route.payloads); }

  int64_t bytes_of(const nc_route& route, int buffer) const {
    return stored_elements(shard_->plugin, buffer, {route.rows, route.columns}) *
           static_cast<int64_t>(c10::elementSize(stored_dtype(shard_->plugin, buffer)));
  }

  void lay_out(Phase& phase) {
    const nc_route& route = phase.route;
    int64_t send_end = 0, unpacked_end = 0, shared_end = 0;
    std::array<bool, NC_MAX_PAYLOADS> as_stored{};
    for (int i = 0; i < route.segments; ++i) {
      const nc_segment& segment = route.segment[i];
      as_stored[segment.payload] = segment.as_stored && shard_->rows == route.shard_rows;
      phase.unpacked_at[i] =
          segment.in_place ? kAsStored : claim(unpacked_end, bytes_of(route, segment.buffer));
    }
    for (int payload = 0; payload < route.payloads; ++payload) {
      const int64_t bytes = route.payload_bytes[payload];
      phase.send_at[payload] = as_stored[payload]   ? kAsStored
                               : is_shared(payload) ? claim(shared_end, bytes, kSharedAlignment)
                                                    : claim(send_end, bytes);
    }
    send_bytes_ = std::max(send_bytes_, send_end);
    shared_bytes_ = std::max(shared_bytes_, shared_end);
    unpacked_bytes_ = std::max(unpacked_bytes_, unpacked_end);
  }

  OptionalTensor spanning_of(const OptionalTensor& spanning) {
    if (!spanning || !is_plain(*spanning)) return spanning;
    return spanning_.emplace_back(*spanning).gathered();
  }

  std::shared_ptr<Buffers> make_gathered(const Phase& phase, const OptionalTensor& amax,
                                         const OptionalTensor& history) {
    const nc_route& route = phase.route;
    const Plugin& plugin = shard_->plugin;
    const Extent matrix{route.rows, route.columns};
    Buffers::Tensors buffers;
    for (int i = 0; i < route.segments; ++i) {
      const auto& [buffer, payload, first, last, in_place, as_stored] = route.segment[i];
      const at::Tensor& memory = in_place ? received_[own_index(payload)] : unpacked_.value();
      buffers[buffer] =
          memory.narrow(0, in_place ? first : phase.unpacked_at[i], bytes_of(route, buffer))
              .view(stored_dtype(plugin, buffer))
              .view(tensor_sizes(plugin, buffer, stored_shape(plugin, buffer, matrix)));
    }
    for (const auto [data, scale] : {buffers_of(0), buffers_of(1)}) {
      if (spans_tensor(plugin, scale) && buffers[data])
        buffers[scale] = spanning_of(shard_->buffers[scale]);
    }
    return std::make_shared<Buffers>(shard_->format, route.rows, route.columns, buffers, amax,
                                     history);
  }

  std::shared_ptr<Buffers> shard_;
  std::vector<Phase> phases_;  // forward and backward, or the one that serves both
  int64_t send_bytes_ = 0, send_begin_ = 0, unpacked_bytes_ = 0;
  unsigned shared_ = 0;  // a bit for each payload
  int64_t shared_bytes_ = 0, shared_begin_ = 0, shared_rank_bytes_ = 0;
  at::Tensor send_buffer_;  // of the whole group
  std::vector<at::Tensor> received_;
  std::vector<Spanning> spanning_;
  OptionalTensor unpacked_, shared_received_;
};

}  // namespace narrowcast
