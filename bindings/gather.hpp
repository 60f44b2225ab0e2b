// What FSDP2's all-gathers carry of a weight, and where it arrives: docs/sharding.md.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "bindings/bytes.hpp"
#include "bindings/tensors.hpp"

namespace narrowcast {

// The gathers of one sharded weight. Payloads and room are laid out once, because FSDP2 fixes a
// payload's size at the first gather; each gather fills them anew.
class WeightGather {
 public:
  // `shard`: this rank's bytes, of at most shard_rows of the weight's `rows` rows. `both`: every
  // gather serves both passes.
  WeightGather(std::shared_ptr<Bytes> shard, int64_t rows, int64_t shard_rows, int64_t world,
               bool both);

  const std::shared_ptr<Bytes>& shard() const { return shard_; }

  // What this rank sends for a pass: uint8, one-dimensional; the shard's own buffers where they are
  // what travels, else parts of an outbox, uint8, from `begin` on, which pack() fills.
  int64_t outbox_bytes() const { return outbox_bytes_; }
  void use_outbox(const at::Tensor& outbox, int64_t begin);
  const std::vector<at::Tensor>& payloads(bool backward) const { return of(backward).sent; }

  // Makes room for the whole weight over the slots that payloads arrive in, and in `arena`, uint8
  // of arena_bytes(), for what does not arrive as it is stored.
  int64_t arena_bytes() const { return arena_bytes_; }
  void settle(const std::vector<at::Tensor>& slots, const OptionalTensor& arena);
  const OptionalTensor& arena() const { return arena_; }
  // The whole weight as the gather of a pass brings it; after settle().
  const std::shared_ptr<Bytes>& whole(bool backward) const { return of(backward).whole; }
  // The same, and says in present() which usages have come, where that differs by pass.
  const std::shared_ptr<Bytes>& arrive(bool backward) const;
  // 0-dim int64 on the CPU, bit 0 rowwise and bit 1 columnwise: for graphs of torch.compile, whose
  // inputs are the same buffers in both passes. Undefined where every gather brings the same.
  const at::Tensor& present() const { return present_; }

  // Its rows in the tables of pack and unpack. Addresses are those of now.
  nc_shipment outgoing(bool backward) const;
  nc_shipment incoming(bool backward) const;

 private:
  static constexpr int64_t kAsStored = -1;
  // The gather of one phase, and where its parts lie in the outbox and in the arena: kAsStored
  // where a shard's buffer is sent itself, or what arrives is the whole buffer.
  struct Phase {
    nc_route route{};
    std::array<int64_t, NC_MAX_PAYLOADS> outbox_at{};
    std::array<int64_t, NC_BUFFER_COUNT> arena_at{};  // by segment
    std::vector<at::Tensor> sent;
    std::shared_ptr<Bytes> whole;
  };
  const Phase& of(bool backward) const { return phases_[phases_.size() == 1 ? 0 : backward]; }
  void lay_out(Phase& phase);
  std::shared_ptr<Bytes> make_whole(const Phase& phase) const;

  std::shared_ptr<Bytes> shard_;
  std::vector<Phase> phases_;  // forward and backward, or the one that serves both
  int64_t outbox_bytes_ = 0, arena_bytes_ = 0;
  std::vector<at::Tensor> slots_;
  OptionalTensor arena_;
  at::Tensor present_;
};

// The weights that FSDP2 gathers together: one launch a format to pack them, and one to unpack.
class GatherGroup {
 public:
  explicit GatherGroup(const std::vector<std::shared_ptr<WeightGather>>& weights);
  void pack(bool backward) const;
  void unpack(bool backward) const;

 private:
  void transfer(nc_transfer_function nc_machine::*function, const char* what,
                nc_shipment (WeightGather::*shipment)(bool) const, bool backward) const;

  std::map<std::string, std::vector<std::shared_ptr<WeightGather>>> by_format_;
};

}  // namespace narrowcast
