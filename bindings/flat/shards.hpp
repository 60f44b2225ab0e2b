// The flat shards that a rank owns of matrices of one format on one device, each a run of elements
// that begins and ends anywhere: what casts and updates of them have in common.
#pragma once

#include "bindings/core/buffers.hpp"
#include "bindings/core/launch.hpp"
#include "runtime/launch/cuts.hpp"

namespace narrowcast {

// Where a matrix's first element would lie, had a run of elements that begins at `begin` all of it.
inline void* first_of(void* run, int64_t begin, size_t itemsize) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(run) -
                                 static_cast<uintptr_t>(begin) * itemsize);
}

// Where the rows that a matrix has begin in the whole one, at a multiple of the format's row step,
// and how many rows that has.
using RowsOfWhole = std::pair<int64_t, int64_t>;

class FlatShards {
 public:
  // `begins`, `ends`: elements that are this rank's; `cuts`: where any rank's begin, of each whole
  // matrix; `first_slot`: of the exchange that all shards of a process group share. `places`: of
  // the rows that are here; empty where all matrices are whole.
  FlatShards(std::vector<std::shared_ptr<Buffers>> matrices, std::vector<int64_t> begins,
             std::vector<int64_t> ends, const std::vector<std::vector<int64_t>>& cuts,
             int64_t first_slot, const std::vector<RowsOfWhole>& places);

  const Plugin& plugin() const { return matrices_[0]->plugin; }
  const nc_machine& machine() const { return plugin().machine(device()); }
  at::Device device() const { return matrices_[0]->device; }
  int64_t size() const { return std::ssize(matrices_); }
  bool spans() const { return plugin().format().tensor_amax != 0; }
  // Of the rows that are here.
  int64_t begin(size_t i) const { return begins_[i]; }
  int64_t elements(size_t i) const { return ends_[i] - begins_[i]; }

  // What the slots begin with, int32 on the CPU: the identity of the reduction; and of
  // whole matrices of other sizes, whose shards begin at `cuts`.
  at::Tensor identity() const;
  at::Tensor identity_of(const std::vector<std::pair<int64_t, int64_t>>& shapes,
                         const std::vector<std::vector<int64_t>>& cuts) const;

  // A shard's row in the table of a launch, without values. Where columnwise follows from rowwise
  // it is not written, but derived when all shards have been gathered.
  nc_tensor entry(size_t i) const;

  // Its ends that wait for other owners: for amaxes of divided blocks, or, where a cast waits for
  // no amax, for values in divided bytes alone.
  std::vector<nc_tensor> ends(size_t i, const nc_tensor& entry, bool bytes_alone) const;

  // Whether these matrices have their memory where the shards' launches write: weights get other
  // memory, and storages move and are freed in place.
  bool are_of(const std::vector<std::shared_ptr<Buffers>>& now) const;

 private:
  // Of one matrix: of the buffers that launches write, amax and history.
  using Memory = std::array<std::optional<Place>, NC_BUFFER_COUNT + 2>;
  static bool is_of(const Memory& memory, const Buffers& bytes);

  std::vector<std::shared_ptr<Buffers>> matrices_;
  std::vector<int64_t> begins_, ends_;  // elements of the rows that are here
  std::vector<int64_t> ahead_;          // elements of the whole matrix ahead of them
  std::vector<Cuts> cuts_;
  std::vector<Memory> memory_;  // as it was at first
  std::vector<nc_seams> seams_;
  at::Tensor seams_copy_;
  const nc_seams* seams_in_memory_ = nullptr;
};

}  // namespace narrowcast
