// Where the cuts between flat shards of a matrix divide blocks and bytes, and which slots of an
// exchange its owners have for what they share: the same on all of them.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast {

class Cuts {
 public:
  // `columnwise`: whether shards write it, as where it is not derived; rowwise they always do.
  // `cuts`: the elements at which shards begin; the matrix's own ends count for nothing.
  // `first_slot`: of the matrix in the exchange.
  Cuts(const nc_format& format, Extent matrix, bool columnwise, const std::vector<int64_t>& cuts,
       int64_t first_slot);

  // Floats of the exchange: amaxes of divided blocks first, then values of elements in divided
  // bytes.
  int64_t amaxes() const { return amaxes_; }
  int64_t values() const { return values_; }

  // What the owner of elements `begin` to `end` shares with others.
  nc_seams seams(int64_t begin, int64_t end) const;
  // Whether a cut there divides a block or a byte.
  bool divides(int64_t cut) const;
  // Whether it divides a byte: codes then wait for the values of others, not for amaxes alone.
  bool divides_bytes(int64_t cut) const;

 private:
  // Blocks of one size in a row of them, or as many rows as a byte of codes spans.
  struct Band {
    int64_t block_rows, block_columns, rows, columns;  // of a block; of what is divided as one
    int64_t index;                                     // of the row of such
    auto operator<=>(const Band&) const = default;     // NOLINT(modernize-use-nullptr)
  };
  struct Range {
    int64_t begin, end, slot;
  };

  // What a cut divides in one usage: a band, and where in it; an empty range if nothing.
  std::pair<Band, Range> divided_blocks(const nc_layout& layout, int64_t cut) const;
  // The elements that have bits in the bytes that a cut divides, an empty range if there are none;
  // and the first of the whole bytes that they fill with others.
  std::pair<int64_t, Range> divided_bytes(int64_t cut) const;
  static void widen(Range& range, const Range& by);
  nc_seam seam_of(const Band& band, const Range& range) const;

  Extent matrix_;
  std::vector<nc_layout> layouts_;  // that are written, and whose blocks a cut can divide
  std::vector<nc_layout> packed_;   // that are written, and whose bytes a cut can divide
  std::map<Band, Range> bands_;
  std::map<int64_t, Range> zones_;  // elements of divided bytes, by the first of their whole bytes
  int64_t amaxes_ = 0, values_ = 0;
};

// Gives an entry of a table the flat shard of elements `begin` to `end`, and has launches visit its
// tiles alone; those of one row, where it is empty. `seams`: in the machine's memory, or NULL.
void set_shard(nc_tensor& tensor, const nc_machine& machine, int64_t begin, int64_t end,
               const nc_seams* seams);

// The same shard, visited only in the tiles at those of its ends that `waits` says yes to.
std::vector<nc_tensor> shard_ends(const nc_tensor& shard, const nc_machine& machine,
                                  const std::function<bool(int64_t cut)>& waits);

}  // namespace narrowcast
