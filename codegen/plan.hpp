// What follows from a spec. Emitters read a Plan and decide nothing: a number or a choice that they
// need is a field here.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/vocabulary.hpp"
#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::codegen {

// What an all-gather carries.
enum class Gather {
  kRowwise,  // both passes gather the rowwise bytes; columnwise is derived after arrival
  kByPass    // the forward gathers rowwise, the backward columnwise
};

// The runtime's C++ types that stand for the spec's words.
struct TypeNames {
  std::string element;  // "E4M3"
  std::string header;   // the runtime's file that defines it: "runtime/numeric/small_float.hpp"
  std::string scale;    // "E8M0"
  std::string rule;     // "Rceil<E8M0, E4M3>": from an amax to a scale
  std::string decoder;  // "OneLevel<E8M0>": from a stored scale to a multiplier
};

// One buffer of a matrix of a given shape, as a tensor library sees it.
struct BufferShape {
  std::string type;  // "uint8", or that of scales
  Extent shape;
  int64_t bytes;
};

// A usage of the example.
struct ExampleUsage {
  BufferShape data, scale;
  int64_t wire_bytes;  // of a gather, before rows are rounded up to equal shards
};

// Shapes for pages: ragged against every block, and whole in every packing.
struct Example {
  Extent matrix;
  ExampleUsage rowwise, columnwise;
};

// A buffer as a gather carries it.
struct Carried {
  nc_buffer buffer;
  bool scales;
  bool along_columns;                 // a rank has columns of what is stored, not rows
  int64_t equal_rows, equal_columns;  // neighbours of which one travels, as they are stored
  bool repeats;                       // there are such
  std::string reason;
};

// The gather that serves a phase, or every one.
struct GatherOfPhase {
  std::string name;  // "forward", "backward", "both"; or "always"
  std::string reason;
  std::vector<Carried> carried;  // in the order of the wire
};

// What an operation does with a tensor.
struct OperationRule {
  bool exact;        // or an error
  std::string text;  // under which condition, or for which reason
};

// One of the three matrix products of a linear layer.
struct Product {
  nc_product_kind kind;
  std::string reason;
};

// What a linear layer multiplies a weight of the format by, and how.
struct ProductPlan {
  std::string input, gradient;  // the formats that activations and gradients are cast to; empty:
                                // products are those of decoded weights alone
  bool stochastic_gradient;
  std::array<Product, NC_PRODUCT_COUNT> product;  // in the order of nc_product_of
};

// Why the plan is as it is, in sentences for comments and pages.
struct Reasons {
  std::string rowwise;     // the first usage of the cast
  std::string columnwise;  // the second
  std::string first_pass;  // why a pass goes before the cast, or why none needs to; empty where no
                           // scale spans the tensor
  std::string gather;
  std::string row_step;
  std::string shard_row_step;
  std::string optimizer_passes;
  std::string packing;   // how codes lie in the bytes of a stored row
  std::string decoding;  // the formula of a value
  std::string amax;      // what is reduced over shards
  std::string tile_rows, strip_tiles;
  std::string collect;      // what owners of flat shards find before a cast
  std::string flat_shards;  // what their cuts divide, and what they reduce
};

// A format of an optimizer's state.
struct StatePlan {
  int64_t block, roots[2];  // roots: of a state of both signs, of a nonnegative one
};

struct Plan {
  // As the spec says it.
  std::string name, summary, reference;
  Kind kind;
  StatePlan state;         // if it is of that kind; else all that follows name_space and origin
  std::string name_space;  // of the generated C++, within `narrowcast`
  std::string origin;      // where generated text comes from, and how to change it: origin.hpp
  Element element;
  Packing packing;
  ScaleType scale;
  TensorScale tensor_scale;
  ScaleRule rule;
  Amax amax;

  TypeNames types;
  int32_t code_bits;  // of an element; fewer than the layouts' element_bits where it has a byte
  std::string scale_dtype;  // of a stored scale, in torch
  nc_layout rowwise, columnwise;
  bool two_levels;          // a tensor scale stands above the block scales
  bool spans_tensor;        // the one scale of a usage is that of the tensor
  bool tensor_amax;         // either: `amax` is stored, and reduced over shards
  bool delayed_amax;        // the scale comes from the amaxes of earlier steps
  bool columnwise_derived;  // columnwise is a rearrangement of the rowwise bytes
  Gather gather;

  int64_t row_step;        // rows at whose multiples both usages can be cut
  int64_t shard_row_step;  // the same for what a shard keeps: columnwise only where it is quantized
  int64_t column_step;     // columns at whose multiples both usages can be cut
  double bits_per_element;       // the rowwise usage as stored, without padding
  double wire_bits_per_element;  // the same, without repetition
  double columnwise_bits;        // as stored, without padding
  double columnwise_wire_bits;
  int optimizer_passes;  // kernels of a step: 2 if the cast must wait for the tensor's amax
  int64_t tile_rows;     // of the GPU's tile, and of the CPU's
  int64_t strip_tiles;   // that a thread block of the GPU casts, one below the other

  float tensor_range;        // two levels: what the tensor scale brings the amax to; else 0
  int32_t significant_bits;  // of a decoded value, a scale that spans the tensor left aside

  Example example;
  Reasons reasons;
  std::vector<GatherOfPhase> gathers;
  std::array<OperationRule, NC_OPERATION_COUNT> rules;  // in the order of nc_operation
  ProductPlan products;  // filled by plan_products(), which reads other plans
};

}  // namespace narrowcast::codegen
