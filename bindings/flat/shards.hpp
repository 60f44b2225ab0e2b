// The flat shards that a rank owns of matrices of one format on one device, each a run of elements
// that begins and ends anywhere: their casts, and what optimizer steps (UpdateTable) read of them.
#pragma once

#include "bindings/core/buffers.hpp"
#include "bindings/core/launch.hpp"
#include "runtime/gather/flat_payloads.hpp"
#include "runtime/launch/cuts.hpp"

namespace narrowcast {

using Matrices = std::vector<std::shared_ptr<Buffers>>;

// Where a matrix's first element would lie, had a run of elements that begins at `begin` all of it.
inline void* first_of(void* run, int64_t begin, size_t itemsize) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(run) -
                                 static_cast<uintptr_t>(begin) * itemsize);
}

// Of the rows that a matrix has of a whole one: the first, at a multiple of the format's row step;
// how many rows the whole has; and the index of the whole's first element in the weight, of which
// it may be a part.
using RowsOfWhole = std::tuple<int64_t, int64_t, int64_t>;

// ValueError unless some matrices are in the memory of one device, and each element of the whole
// ones, of so many rows, is one rank's.
Matrices checked(Matrices matrices, const std::vector<RowsOfWhole>& places,
                 const FlatRanges& ranges);

class FlatShards {
 public:
  // `own`: the elements of each whole matrix that are this rank's; `ranges`: those of all ranks;
  // `first_slot`: of the exchange that all shards of a process group share.
  FlatShards(Matrices matrices, const std::vector<RowsOfWhole>& places,
             const std::vector<std::pair<int64_t, int64_t>>& own, const FlatRanges& ranges,
             int64_t first_slot);

  const Plugin& plugin() const { return matrices_[0]->plugin; }
  const nc_machine& machine() const { return plugin().machine(device()); }
  at::Device device() const { return matrices_[0]->device; }
  int64_t size() const { return std::ssize(matrices_); }
  bool spans() const { return plugin().format().tensor_amax != 0; }
  int64_t elements(size_t i) const { return ends_[i] - begins_[i]; }

  // A shard's row in the table of a launch, without values. Where columnwise follows from rowwise
  // it is not written, but derived when all shards have been gathered.
  nc_tensor entry(size_t i) const;

  // Its ends that wait for other owners: for amaxes of divided blocks, or, where a cast waits for
  // no amax, for values in divided bytes alone.
  std::vector<nc_tensor> ends(size_t i, const nc_tensor& entry, bool bytes_alone) const;

  // Whether these matrices have their memory where the shards' launches write: weights get other
  // memory, and storages move and are freed in place.
  bool are_of(const Matrices& now) const;

  // A cast: this rank's part of what the ranks reduce by maxima of int32 (with a delayed scale also
  // the codes), of masters, none of an empty shard; and what waits for the reduction. `amaxes`:
  // float32, one a shard, where a scale spans the tensor. `draws`: but for `first`, which is known.
  // `skips`: float32, one a shard, or none; where it is negative, the shard is left as it is.
  void collect(const std::vector<OptionalTensor>& values, const OptionalTensor& amaxes,
               const at::Tensor& exchange, bool source_bf16,
               const std::optional<std::vector<RandomKey>>& draws);
  void finish(const OptionalTensor& amaxes, const at::Tensor& exchange, bool source_bf16,
              bool stochastic, const OptionalTensor& skips);

 private:
  nc_launch options(const OptionalTensor& amaxes, const at::Tensor& exchange, bool source_bf16,
                    bool stochastic) const;

  Matrices matrices_;
  std::vector<int64_t> begins_, ends_;  // elements of the rows that are here
  std::vector<int64_t> ahead_;          // elements of the whole matrix ahead of them
  std::vector<int64_t> origins_;        // of the whole matrix in the weight
  std::vector<Cuts> cuts_;
  std::vector<nc_tensor> written_;  // where launches write, as it was at first
  std::vector<nc_seams> seams_;
  at::Tensor seams_copy_;
  const nc_seams* seams_in_memory_ = nullptr;
  MatrixTable all_, at_ends_, at_bytes_;  // shards; their ends that divide blocks, and bytes
};

}  // namespace narrowcast
