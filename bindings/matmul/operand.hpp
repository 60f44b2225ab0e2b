// A matrix in a format as a product takes it.
#pragma once

#include <vector>

#include "bindings/core/buffers.hpp"

namespace narrowcast {

// A scale that spans a tensor, which products leave out of their operands:
// stored * multiplier; `stored` is one float32, checked when an operand's scale is asked for.
struct SpanningScale {
  at::Tensor stored;
  float multiplier;
};
using OptionalSpanningScale = std::optional<SpanningScale>;

// The bytes of one usage, and the direction in which a product sums. Of a @ b.T, each operand keeps
// one of its matrix's dimensions and is summed over the other.
struct Operand {
  const Plugin* plugin;
  int usage;              // whose bytes these are: 0 rowwise, 1 columnwise
  bool over_rows;         // summed over the matrix's rows
  int64_t rows, columns;  // -1 in a trace, where they may be symbols
  at::Tensor data, scale;
  OptionalTensor amax;

  const nc_format& facts() const { return plugin->format(); }
  const nc_layout& layout() const { return plugin->layout(2 * usage); }
  at::Device device() const { return data.device(); }
  int64_t kept() const { return over_rows ? columns : rows; }
  int64_t summed() const { return over_rows ? rows : columns; }
  // The layout of its bytes as those of the matrix [kept, summed].
  nc_layout layout_in_product() const { return over_rows ? mirror(layout()) : layout(); }

  // Its row in the table of a launch. ValueError or TypeError if a tensor is not what the format
  // stores.
  nc_tensor entry() const;
  // Its value [kept, summed], of a logical dtype.
  at::Tensor value(at::ScalarType dtype) const { return oriented(entry(), dtype); }

  // A scale that spans the tensor; none in other formats. With it left out, values have
  // significant_bits alone.
  OptionalSpanningScale spanning_scale() const;
  at::Tensor value_without_spanning_scale(at::ScalarType dtype) const;

 private:
  at::Tensor oriented(const nc_tensor& entry, at::ScalarType dtype) const;
};

// A usage that is there.
Operand operand_of(const Buffers& bytes, int usage, bool over_rows);

// The tensors of a cast as graphs of torch.compile hold them: data, scales and, where values depend
// on it, amax.
std::vector<at::Tensor> stored_tensors(const Operand& operand);
Operand operand_of(const std::vector<at::Tensor>& stored, const Plugin& plugin, int usage,
                   bool over_rows);

// A weight of which a graph has the key: its bytes as they are now. TypeError for another tensor,
// and for a weight in another format; ValueError if its last gather has not brought the usage.
std::shared_ptr<Buffers> checked_bytes_of_key(const at::Tensor& key, const Plugin& plugin);
void check_gathered(const Buffers& bytes, int usage);
Operand operand_of_key(const at::Tensor& key, const Plugin& plugin, int usage, bool over_rows);

}  // namespace narrowcast
