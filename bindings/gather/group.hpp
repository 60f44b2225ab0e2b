// The weights that FSDP2 gathers together: one launch a format to pack them, and one to unpack.
// Where nothing has changed since the last gather, begin() packs without any code of Python's,
// whose objects lie scattered in memory.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/core/changes.hpp"
#include "bindings/core/launch.hpp"
#include "bindings/core/python_tensors.hpp"
#include "bindings/gather/weight_gather.hpp"
#include "runtime/launch/capture.hpp"

namespace narrowcast {

using GatherWeights = std::vector<std::shared_ptr<WeightGather>>;

// Weights of one format, of which something is packed, or unpacked: the same in both passes, or by
// pass, as those do of which one weight does.
struct Batch {
  GatherWeights weights;
  std::array<CopyTable, 2> copies;
  bool is_alike = true;

  void add(const std::shared_ptr<WeightGather>& weight) {
    weights.push_back(weight);
    is_alike = is_alike && weight->carries_alike();
  }
  CopyTable& of(bool backward) { return copies[backward && !is_alike]; }
};
using Batches = std::map<std::string, Batch>;

// What FSDP2 says of a group: whether it gathers for a backward. The names are those of Python's
// fsdp.torch_names.
struct Fsdp2Group {
  bool is_backward() const { return attribute(group(), state.ptr()).is(pre_backward); }

  py::object group;         // a weak reference
  py::str state;            // its attribute
  py::object pre_backward;  // the attribute's value in a backward
};

class GatherGroup : public WriteObserver {
 public:
  // `keeps_packed`: what a gather has packed stays in the send buffer, and later ones send it
  // again, until bytes are made, or torch counts a write to what was packed. `keeps_parts`: of
  // weights that FSDP2 frees it keeps parts, which it gathers again. `has_empty_shards`: ranks
  // without rows learn before each gather of a forward, in Python, what the others have written.
  GatherGroup(const GatherWeights& weights, Fsdp2Group fsdp2, bool keeps_packed, bool keeps_parts,
              bool has_empty_shards)
      : weights_(weights),
        fsdp2_(std::move(fsdp2)),
        keeps_packed_(keeps_packed),
        keeps_parts_(keeps_parts),
        has_empty_shards_(has_empty_shards) {
    for (const auto& weight : weights) {
      const Buffers& shard = weight->shard();
      if (!shard.is_plain) continue;  // what stands for a tensor has no memory
      const std::string format = shard.facts().name;
      if (shard.facts().tensor_amax || shard.history) spanned_.push_back(weight);
      if (weight->send_bytes() + weight->shared_bytes() != 0) packed_[format].add(weight);
      if (weight->unpacked_bytes() != 0) unpacked_[format].add(weight);
    }
  }

  GatherGroup(const GatherGroup&) = delete;
  GatherGroup& operator=(const GatherGroup&) = delete;
  ~GatherGroup() override { std::erase(write_observers, this); }

  // Weights that stay gathered keep what they have gathered. FSDP2 frees all of a group together.
  void before_write() override {
    is_observing_ = false;
    if (!keeps_parts_ && spanned_[0]->is_freed()) return;
    for (const auto& weight : spanned_) weight->keep_spanning();
  }

  // The shards have been looked at.
  void watch(std::shared_ptr<Watch> watch) { watch_ = std::move(watch); }
  // Whether nothing has changed since then.
  bool are_quiet() const { return watch_ != nullptr && watch_->is_quiet(); }

  // Packs; whether it is for a backward. Nothing, and nothing is done, if Python has to see to the
  // shards or to the send buffer before, or what several groups pack is to be packed together.
  std::optional<bool> begin() {
    if (!keeps_packed_ || !are_quiet()) return {};
    const bool backward = fsdp2_.is_backward();
    if (!backward && (has_empty_shards_ || !is_packed())) return {};
    pack(backward);
    return backward;
  }
  void pack(bool backward) {
    follow_shards();
    if (is_packed()) return;
    is_packed_.reset();
    for (auto& [format, batch] : packed_) found(batch, &WeightGather::add_outgoing, backward);
    const std::optional<Packed> packed = now_packed();
    for (auto& [format, batch] : packed_) pack(batch, batch.of(backward).rows());
    is_packed_ = packed;
  }
  // What the next gathers of some groups pack, where that stays and their shards are as they were:
  // a launch for each format.
  static void pack_together(const std::vector<GatherGroup*>& groups) {
    std::map<std::string, std::pair<const Batch*, std::vector<nc_shipment>>> together;
    std::vector<std::pair<GatherGroup*, std::optional<Packed>>> packed;
    for (GatherGroup* group : groups) {
      if (!group->keeps_packed_ || !group->are_quiet() || group->is_packed()) continue;
      group->is_packed_.reset();
      for (auto& [format, batch] : group->packed_) {
        const std::string place = format + " on " + batch.weights[0]->shard().device.str();
        const auto more = found(batch, &WeightGather::add_outgoing, false).rows();
        auto& [first, rows] =
            together.try_emplace(place, &batch, std::vector<nc_shipment>()).first->second;
        rows.insert(rows.end(), more.begin(), more.end());
      }
      packed.emplace_back(group, group->now_packed());
    }
    for (const auto& [place, one] : together) pack(*one.first, one.second);
    for (const auto& [group, by_what] : packed) group->is_packed_ = by_what;
  }
  // A gather has ended: unpacks the bytes that are not in place.
  void unpack(bool backward) {
    for (auto& [format, batch] : unpacked_) {
      const CopyTable& copies = found(batch, &WeightGather::add_incoming, backward);
      transfer(&nc_machine::unpack, "unpacking gathered shards", batch, copies.rows());
    }
  }
  // Weights lie in other memory than at the last gather.
  void forget() {
    is_packed_.reset();
    for (Batches* batches : {&packed_, &unpacked_}) {
      for (auto& [format, batch] : *batches) batch.copies = {};
    }
  }

 private:
  bool is_packed() {
    return packed_.empty() || (keeps_packed_ && is_packed_ && is_packed_ == now_packed());
  }
  // From a gather on whole weights have what spans the tensor in their shards, until those are
  // written to.
  void follow_shards() {
    for (const auto& weight : spanned_) weight->follow_shard();
    if (spanned_.empty() || is_observing_) return;
    write_observers.push_back(this);
    is_observing_ = true;
  }
  // With the addresses of now.
  static const CopyTable& found(Batch& batch, void (WeightGather::*add)(bool, CopyTable&) const,
                                bool backward) {
    CopyTable& copies = batch.of(backward);
    if (!copies.rows().empty() && copies.find_addresses()) return copies;
    CopyTable made;
    for (const auto& weight : batch.weights) (weight.get()->*add)(backward, made);
    made.find_addresses();
    return copies = std::move(made);
  }
  static void transfer(nc_transfer_function nc_machine::*function, const char* what,
                       const Batch& batch, std::span<const nc_shipment> copies) {
    const Buffers& first = batch.weights[0]->shard();
    nc_transfer transfer{};
    transfer.shipments = copies.data();
    transfer.count = std::ssize(copies);
    call(first.plugin.machine(first.device).*function, what, transfer, first.device);
  }
  static void pack(const Batch& batch, std::span<const nc_shipment> copies) {
    transfer(&nc_machine::pack, "packing shards", batch, copies);
  }

  // When something was packed: by what of the shards' bytes, and for which stream's work.
  struct Packed {
    int64_t writes, counted;
    void* stream;
    bool operator==(const Packed&) const = default;
  };
  // Of now; nothing if it cannot be known later whether it still is so.
  std::optional<Packed> now_packed() {
    const at::Device device = weights_[0]->shard().device;
    void* const stream = stream_of(device);
    if (device.is_cuda() && capture_of(stream) != 0) return {};
    Packed packed{writes, 0, stream};
    for (auto& [format, batch] : packed_) {
      const std::optional<int64_t> counted = batch.of(false).counted_writes();
      if (!counted) return {};
      packed.counted += *counted;
    }
    return packed;
  }

  GatherWeights weights_;  // which keep their shards
  GatherWeights spanned_;  // those with something that spans the tensor
  Batches packed_, unpacked_;
  Fsdp2Group fsdp2_;
  std::shared_ptr<Watch> watch_;
  bool keeps_packed_, keeps_parts_, has_empty_shards_, is_observing_ = false;
  std::optional<Packed> is_packed_;
};

}  // namespace narrowcast
