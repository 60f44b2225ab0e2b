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
    } else {
      present_ = at::zeros({}, at::TensorOptions().dtype(at::kLong));
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
  // what travels, else parts of an outbox, uint8, from `begin` on, which pack() fills. What it
  // shares is filled too, in the same outbox, but sent by another.
  int64_t outbox_bytes() const { return outbox_bytes_; }
  void use_outbox(const at::Tensor& outbox, int64_t begin) {
    outbox_ = outbox;
    outbox_begin_ = begin;
    for (Phase& phase : phases_) {
      const nc_route& route = phase.route;
      phase.sent.assign(own_payloads(phase), at::Tensor());
      for (int i = 0; i < route.segments; ++i) {
        const auto& [buffer, payload, first, last, in_place, as_stored] = route.segment[i];
        if (is_shared(payload)) continue;
        const int64_t at = phase.outbox_at[payload];
        phase.sent[own_index(payload)] =
            at == kAsStored ? shard_->buffers[buffer]->view({-1}).view(at::kByte)
                            : outbox.narrow(0, begin + at, route.payload_bytes[payload]);
      }
    }
  }
  // Its part of the payload that weights share: of each rank, from `begin` on of `bytes` in all,
  // which are the first of the outbox.
  int64_t shared_bytes() const { return shared_bytes_; }
  void share(int64_t begin, int64_t bytes) {
    shared_begin_ = begin;
    shared_rank_bytes_ = bytes;
  }
  const std::vector<at::Tensor>& payloads(bool backward) const { return of(backward).sent; }

  // Makes room for the whole weight over the slots that payloads arrive in, and in `arena`, uint8
  // of arena_bytes(), for what does not arrive as it is stored. `shared`: the slot of the payload
  // that weights share.
  int64_t arena_bytes() const { return arena_bytes_; }
  void settle(const std::vector<at::Tensor>& slots, const OptionalTensor& arena,
              const OptionalTensor& shared) {
    slots_ = slots;
    arena_ = arena;
    shared_slot_ = shared;
    spanning_.clear();
    const OptionalTensor amax = gathered(shard_->amax), history = gathered(shard_->history);
    for (Phase& phase : phases_) {
      if (std::ssize(slots) != own_payloads(phase))
        value_error("FSDP2 brought ", slots.size(), " payloads of a weight, and ",
                    own_payloads(phase), " were sent");
      phase.whole = make_whole(phase, amax, history);
    }
  }
  const OptionalTensor& arena() const { return arena_; }

  // What spans the tensor, in the whole weight: see Spanning.
  void follow_shard() {
    for (Spanning& one : spanning_) one.follow();
  }
  void keep_spanning() {
    for (Spanning& one : spanning_) one.keep();
  }
  // Whether FSDP2 has no memory for the whole weight now.
  bool is_freed() const { return !phases_[0].whole || phases_[0].whole->is_freed(); }

  // The whole weight as the gather of a pass brings it; after settle().
  const std::shared_ptr<Buffers>& whole(bool backward) const { return of(backward).whole; }
  // The same, and says in present() which usages have come, where that differs by pass.
  const std::shared_ptr<Buffers>& arrive(bool backward) const {
    const std::shared_ptr<Buffers>& bytes = whole(backward);
    // Beside torch's version counter: a graph that has saved it for its backward wants the new
    // value.
    if (present_.defined() && shard_->is_plain)
      *static_cast<int64_t*>(present_.mutable_data_ptr()) = bytes->has(0) + 2 * bytes->has(1);
    return bytes;
  }
  // 0-dim int64 on the CPU, bit 0 rowwise and bit 1 columnwise: for graphs of torch.compile, whose
  // inputs are the same buffers in both passes. Undefined where every gather brings the same.
  const at::Tensor& present() const { return present_; }

  // The shard's buffers that are sent themselves in the gather of a pass.
  std::vector<int> sent_as_stored(bool backward) const {
    const Phase& phase = of(backward);
    std::vector<int> sent;
    for (int i = 0; i < phase.route.segments; ++i) {
      const nc_segment& segment = phase.route.segment[i];
      if (phase.outbox_at[segment.payload] == kAsStored) sent.push_back(segment.buffer);
    }
    return sent;
  }

  // Whether both passes carry the same.
  bool carries_alike() const { return phases_.size() == 1; }

  // Adds it to what is packed, or unpacked: the parts of which that is asked.
  void add_outgoing(bool backward, CopyTable& shipments) const {
    const Phase& phase = of(backward);
    shipments.add(phase.route, shard_->rows);
    for (int i = 0; i < phase.route.segments; ++i) {
      const auto& [buffer, payload, first, last, in_place, as_stored] = phase.route.segment[i];
      const int64_t at = phase.outbox_at[payload];
      if (at == kAsStored) continue;
      shard_->address(buffer);  // says what has been freed
      shipments.put_buffer(buffer, *shard_->buffers[buffer]);
      shipments.put_payload(payload, outbox_,
                            (is_shared(payload) ? shared_begin_ : outbox_begin_) + at);
    }
  }
  void add_incoming(bool backward, CopyTable& shipments) const {
    const Phase& phase = of(backward);
    shipments.add(phase.route, 0);
    for (int i = 0; i < phase.route.segments; ++i) {
      const auto& [buffer, payload, first, last, in_place, as_stored] = phase.route.segment[i];
      if (in_place) continue;
      phase.whole->address(buffer);
      shipments.put_buffer(buffer, *phase.whole->buffers[buffer]);
      if (!is_shared(payload)) {
        shipments.put_payload(payload, slots_[own_index(payload)], 0);
        continue;
      }
      shipments.put_payload(payload, shared_slot_.value(),
                            shared_begin_ + phase.outbox_at[payload]);
      shipments.route().payload_bytes[payload] = shared_rank_bytes_;
    }
  }

 private:
  // Parts of the outbox and of the arena begin where every dtype and every wide access may.
  static constexpr int64_t kAlignment = 256;
  static constexpr int64_t kSharedAlignment = 16;  // the widest access; what lies between travels
  static constexpr int64_t kAsStored = -1;
  // The gather of one phase, and where its parts lie in the outbox (or, of payloads that are
  // shared, in their part of it) and in the arena: kAsStored where a shard's buffer is sent itself,
  // or what arrives is the whole buffer.
  struct Phase {
    nc_route route{};
    std::array<int64_t, NC_MAX_PAYLOADS> outbox_at{};
    std::array<int64_t, NC_BUFFER_COUNT> arena_at{};  // by segment
    std::vector<at::Tensor> sent;
    std::shared_ptr<Buffers> whole;
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
    int64_t outbox_end = 0, arena_end = 0, shared_end = 0;
    std::array<bool, NC_MAX_PAYLOADS> as_stored{};
    for (int i = 0; i < route.segments; ++i) {
      const nc_segment& segment = route.segment[i];
      as_stored[segment.payload] = segment.as_stored && shard_->rows == route.shard_rows;
      phase.arena_at[i] =
          segment.in_place ? kAsStored : claim(arena_end, bytes_of(route, segment.buffer));
    }
    for (int payload = 0; payload < route.payloads; ++payload) {
      const int64_t bytes = route.payload_bytes[payload];
      phase.outbox_at[payload] = as_stored[payload]   ? kAsStored
                                 : is_shared(payload) ? claim(shared_end, bytes, kSharedAlignment)
                                                      : claim(outbox_end, bytes);
    }
    outbox_bytes_ = std::max(outbox_bytes_, outbox_end);
    shared_bytes_ = std::max(shared_bytes_, shared_end);
    arena_bytes_ = std::max(arena_bytes_, arena_end);
  }

  OptionalTensor gathered(const OptionalTensor& spanning) {
    if (!spanning || !is_plain(*spanning)) return spanning;
    return spanning_.emplace_back(*spanning).gathered();
  }

  std::shared_ptr<Buffers> make_whole(const Phase& phase, const OptionalTensor& amax,
                                      const OptionalTensor& history) {
    const nc_route& route = phase.route;
    const Plugin& plugin = shard_->plugin;
    const Extent matrix{route.rows, route.columns};
    Buffers::Tensors buffers;
    for (int i = 0; i < route.segments; ++i) {
      const auto& [buffer, payload, first, last, in_place, as_stored] = route.segment[i];
      const at::Tensor& memory = in_place ? slots_[own_index(payload)] : arena_.value();
      buffers[buffer] =
          memory.narrow(0, in_place ? first : phase.arena_at[i], bytes_of(route, buffer))
              .view(stored_dtype(plugin, buffer))
              .view(tensor_sizes(plugin, buffer, stored_shape(plugin, buffer, matrix)));
    }
    for (const auto [data, scale] : {buffers_of(0), buffers_of(1)}) {
      if (spans_tensor(plugin, scale) && buffers[data])
        buffers[scale] = gathered(shard_->buffers[scale]);
    }
    return std::make_shared<Buffers>(shard_->format, route.rows, route.columns, buffers, amax,
                                     history);
  }

  std::shared_ptr<Buffers> shard_;
  std::vector<Phase> phases_;  // forward and backward, or the one that serves both
  int64_t outbox_bytes_ = 0, outbox_begin_ = 0, arena_bytes_ = 0;
  unsigned shared_ = 0;  // a bit for each payload
  int64_t shared_bytes_ = 0, shared_begin_ = 0, shared_rank_bytes_ = 0;
  at::Tensor outbox_;  // of the whole group
  std::vector<at::Tensor> slots_;
  std::vector<Spanning> spanning_;
  OptionalTensor arena_, shared_slot_;
  at::Tensor present_;
};

}  // namespace narrowcast
