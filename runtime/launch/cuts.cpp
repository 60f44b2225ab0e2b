#include "runtime/launch/cuts.hpp"

#include <algorithm>
#include <numeric>

namespace narrowcast {
namespace {

// Of how many elements a byte may hold bits.
int64_t elements_in_byte(int64_t bits) {
  constexpr int64_t kByte = 8;
  return ceil_div(kByte - std::gcd(kByte, bits), bits) + 1;
}

}  // namespace

Cuts::Cuts(const nc_format& format, Extent matrix, bool columnwise,
           const std::vector<int64_t>& cuts, int64_t first_slot)
    : matrix_(matrix) {
  std::vector<nc_layout> written{format.rowwise};
  if (columnwise) written.push_back(format.columnwise);
  for (const nc_layout& layout : written) {
    if (!spans_tensor(layout)) layouts_.push_back(layout);
    if (elements_per_group(layout) > 1) packed_.push_back(layout);
  }
  const int64_t elements = matrix.rows * matrix.columns;
  for (const int64_t cut : cuts) {
    if (cut <= 0 || cut >= elements) continue;
    for (const nc_layout& layout : layouts_) {
      const auto [band, range] = divided_blocks(layout, cut);
      if (range.begin >= range.end) continue;
      widen(bands_.try_emplace(band, range).first->second, range);
    }
    if (const auto [group, zone] = divided_bytes(cut); zone.begin < zone.end)
      widen(zones_.try_emplace(group, zone).first->second, zone);
  }
  for (auto& [band, range] : bands_) {
    range.slot = first_slot + amaxes_;
    amaxes_ += seam_of(band, range).rows * seam_of(band, range).columns;
  }
  for (auto& [group, zone] : zones_) {
    zone.slot = first_slot + amaxes_ + values_;
    values_ += zone.end - zone.begin;
  }
}

std::pair<Cuts::Band, Cuts::Range> Cuts::divided_blocks(const nc_layout& layout,
                                                        int64_t cut) const {
  // Blocks that meet in a byte are divided together: an owner of one element of it makes all codes.
  const Extent group = exchanged({1, elements_per_group(layout)}, layout.transposed);
  const Extent step{std::max(layout.block_rows, group.rows),
                    std::max(layout.block_columns, group.columns)};
  const int64_t row = cut / matrix_.columns, column = cut % matrix_.columns;
  const int64_t first = row / step.rows * step.rows;
  const int64_t last = std::min(first + step.rows, matrix_.rows) - 1;
  // Ahead of the cut are all rows before its own, and of that the columns before its own.
  const int64_t end =
      row > first ? ceil_div(matrix_.columns, step.columns) : ceil_div(column, step.columns);
  const int64_t begin = row < last ? 0 : column / step.columns;
  return {{layout.block_rows, layout.block_columns, step.rows, step.columns, row / step.rows},
          {begin, end, 0}};
}

void Cuts::widen(Range& range, const Range& by) {
  range.begin = std::min(range.begin, by.begin);
  range.end = std::max(range.end, by.end);
}

std::pair<int64_t, Cuts::Range> Cuts::divided_bytes(int64_t cut) const {
  int64_t first = cut, widest = 0;
  Range elements{cut, cut, 0};
  for (const nc_layout& layout : packed_) {
    const int64_t stride = layout.transposed ? matrix_.columns : int64_t{1};
    const int64_t group = elements_per_group(layout) * stride, begin = cut / group * group;
    if (begin == cut || group <= widest) continue;
    // On either side of the cut, those with bits in the byte that it divides.
    const int64_t beside = (elements_in_byte(layout.element_bits) - 1) * stride;
    first = begin;
    widest = group;
    elements = {std::max(begin, cut - beside), std::min(begin + group, cut + beside), 0};
  }
  return {first, elements};
}

nc_seam Cuts::seam_of(const Band& band, const Range& range) const {
  const int64_t down = band.rows / band.block_rows, across = band.columns / band.block_columns;
  return {.block_rows = band.block_rows,
          .block_columns = band.block_columns,
          .row = band.index * down,
          .column = range.begin * across,
          .rows = down,
          .columns = (range.end - range.begin) * across,
          .slot = range.slot};
}

bool Cuts::divides_bytes(int64_t cut) const {
  const Range zone = divided_bytes(cut).second;
  return zone.begin < zone.end && cut < matrix_.rows * matrix_.columns;
}

bool Cuts::divides(int64_t cut) const {
  if (cut <= 0 || cut >= matrix_.rows * matrix_.columns) return false;
  return divides_bytes(cut) || std::ranges::any_of(layouts_, [&](const nc_layout& layout) {
           const Range range = divided_blocks(layout, cut).second;
           return range.begin < range.end;
         });
}

nc_seams Cuts::seams(int64_t begin, int64_t end) const {
  nc_seams seams{};
  if (begin >= end) return seams;
  int used = 0, side = 0;
  for (const int64_t cut : {begin, end}) {
    if (divides(cut)) {
      for (const nc_layout& layout : layouts_) {
        const auto [band, range] = divided_blocks(layout, cut);
        if (range.begin >= range.end) continue;
        const Range& known = bands_.at(band);
        seams.blocks[used++] = seam_of(band, known);
      }
      const auto [group, divided] = divided_bytes(cut);
      if (divided.begin < divided.end) {
        const Range& zone = zones_.at(group);
        seams.begin[side] = zone.begin;
        seams.end[side] = zone.end;
        seams.slot[side] = zone.slot;
      }
    }
    ++side;
  }
  return seams;
}

void set_shard(nc_tensor& tensor, const nc_machine& machine, int64_t begin, int64_t end,
               const nc_seams* seams) {
  tensor.before = begin;
  tensor.after = tensor.rows * tensor.columns - end;
  tensor.seams = seams;
  if (begin >= end) {
    tensor.first_row = 0;
    tensor.end_row = 1;
    return;
  }
  tensor.first_row = begin / tensor.columns / machine.tile_rows * machine.tile_rows;
  tensor.end_row = (end - 1) / tensor.columns + 1;
}

std::vector<nc_tensor> shard_ends(const nc_tensor& shard, const nc_machine& machine,
                                  const std::function<bool(int64_t cut)>& waits) {
  const int64_t begin = shard.before, end = shard.rows * shard.columns - shard.after;
  std::vector<nc_tensor> ends;
  if (begin >= end) return ends;
  const auto add = [&](int64_t element) {
    const int64_t row = element / shard.columns / machine.step_rows * machine.step_rows;
    if (!ends.empty() && ends.back().first_row == row) return;
    ends.push_back(shard);
    ends.back().first_row = row;
    ends.back().end_row = std::min(row + machine.step_rows, shard.rows);
  };
  if (waits(begin)) add(begin);
  if (waits(end)) add(end - 1);
  return ends;
}

}  // namespace narrowcast
