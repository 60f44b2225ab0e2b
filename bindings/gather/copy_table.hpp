// The weights of a transfer, as its table has them: made once, for what a gather carries never
// changes. Memory does, which is freed and allocated again: addresses are looked up for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bindings/core/tensors.hpp"

namespace narrowcast {

class CopyTable {
 public:
  // Begins with another weight; what follows is its. `own_rows`: of this rank's shard.
  void add(const nc_route& route, int64_t own_rows) {
    rows_.push_back({.route = route, .own_rows = own_rows, .buffer = {}, .payload = {}});
  }
  nc_route& route() { return rows_.back().route; }

  // A buffer of the weight, or a payload, lies in a tensor's memory, `offset` bytes behind the
  // beginning. ValueError if that has been freed.
  void put_buffer(int number, const at::Tensor& tensor) {
    put(tensor, 0, false, number, "a buffer");
    if (tensor.is_inference()) {
      counts_all_ = false;
    } else {
      written_.push_back(tensor.unsafeGetTensorImpl()->version_counter());
    }
  }
  void put_payload(int number, const at::Tensor& tensor, int64_t offset) {
    put(tensor, offset, true, number, "a payload");
  }

  // Looks up all addresses. False if some memory has been freed.
  bool find_addresses() {
    for (const Part& part : parts_) {
      if (!part.elements.are_there()) return false;
      nc_shipment& row = rows_[part.row];
      (part.is_payload ? row.payload : row.buffer)[part.number] = part.elements.address();
    }
    return true;
  }

  // How many writes to the buffers torch has counted; nothing if it does not count those of all.
  std::optional<int64_t> counted_writes() const {
    if (!counts_all_) return {};
    int64_t sum = 0;
    for (const c10::VariableVersion& one : written_) sum += one.current_version();
    return sum;
  }

  std::span<const nc_shipment> rows() const { return rows_; }

 private:
  struct Part {
    size_t row;
    bool is_payload;
    int number;
    StoredElements elements;
  };
  void put(const at::Tensor& tensor, int64_t offset, bool is_payload, int number,
           const char* what) {
    address_of(tensor, what);  // whatever else may be wrong with it
    parts_.push_back({rows_.size() - 1, is_payload, number, StoredElements(tensor, offset)});
  }

  std::vector<nc_shipment> rows_;
  std::vector<Part> parts_;
  std::vector<c10::VariableVersion> written_;
  bool counts_all_ = true;
};

}  // namespace narrowcast
