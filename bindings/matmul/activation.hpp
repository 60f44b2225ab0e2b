// Casts of activations and of gradients, which scaled products multiply weights by.
#pragma once

#include "bindings/core/launch.hpp"
#include "bindings/matmul/operand.hpp"

namespace narrowcast {

struct Usages {
  bool rowwise, columnwise;
};

// A value in a format.
struct Activation {
  const Plugin* plugin;
  int64_t rows, columns;  // -1 in a trace, where they may be symbols
  Buffers::Tensors buffers;
  OptionalTensor amax;

  bool has(int usage) const { return buffers[2 * usage].has_value(); }
  // Rowwise and summed over columns, or columnwise and summed over rows.
  Operand operand(int usage) const;
};

// Casts a value, [rows, columns] of a logical dtype, in one launch, behind one that finds the amax
// where a scale spans the tensor. With a key, codes are rounded stochastically.
Activation cast_activation(const at::Tensor& value, const Plugin& plugin, Usages usages,
                           const std::optional<RandomKey>& key = {});

// The tensors of a cast as operators return them: data and scales of each usage and, where values
// depend on it, the amax.
std::vector<at::Tensor> all_tensors(const Activation& activation);
Activation activation_of(const std::vector<at::Tensor>& all, const Plugin& plugin, Usages usages);

// A key drawn from torch's default generator of the CPU, for a cast on a device. RuntimeError while
// a CUDA graph is captured there, whose replays would all have the same random words.
RandomKey drawn_key(at::Device device);

// A weight, or a part of one: a layer that takes a part makes another tensor of it each time, with
// an equal key.
struct WeightPart {
  const at::Tensor& tensor;
  int64_t key;
};

// The same of an input that may be that of several layers one after the other, each with a weight
// of its own: the last cast is kept until another input comes, a backward, or a weight that has
// taken it, which begins another forward. An input may have been written to by then in ways that
// torch does not count: a collective receives into it, numpy shares its memory. So it is kept only
// where a backward is to come, too. `value`: the input as rows, converted as autocast says.
Activation cast_input(const at::Tensor& input, const at::Tensor& value, const WeightPart& weight,
                      const Plugin& plugin, Usages usages);
void forget_input();
int64_t kept_input_bytes();

}  // namespace narrowcast
