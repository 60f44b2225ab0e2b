#include "codegen/products.hpp"

#include "codegen/reasons.hpp"
#include "runtime/geometry/geometry.hpp"
#include "runtime/products/kinds.hpp"

namespace narrowcast::codegen {
namespace {

// A matrix as a product takes it: its rows are those of the result, or its columns, and it is
// summed over its columns.
struct Operand {
  const char* what;
  const Plan* plan;
  bool columnwise;
  nc_layout layout;

  static Operand rowwise(const char* what, const Plan& plan) {
    return {what, &plan, false, plan.rowwise};
  }
  static Operand transposed(const char* what, const Plan& plan) {
    return {what, &plan, true, mirror(plan.columnwise)};
  }

  bool is(Element element) const { return plan->element == element; }
  bool has(ScaleType scale) const { return plan->scale == scale; }
  bool has_block(int64_t rows, int64_t columns) const {
    return layout.block_rows == rows && layout.block_columns == columns;
  }
  bool has_pad(int64_t rows, int64_t columns) const {
    return layout.scale_pad_rows == rows && layout.scale_pad_columns == columns;
  }
  bool has_scale_per(int64_t rows, int64_t columns) const {
    return layout.scale_per_rows == rows && layout.scale_per_columns == columns;
  }
  // Scales of 1 x 128 stored as [groups, rows], where rows that are a multiple of 4 have no
  // padding; and of 128 x 128 as [blocks, groups], padded to 4 groups. Each is stored once.
  bool is_in_groups() const {
    return has_block(1, 128) && has_scale_per(1, 128) && layout.scale_transposed &&
           (has_pad(1, 4) || has_pad(1, 1));
  }
  bool is_in_squares() const {
    return has_block(128, 128) && has_scale_per(128, 128) && !layout.scale_transposed &&
           has_pad(1, 4);
  }
  // Scales are stored for each 1 x columns, in the padding that units of sm_100 read.
  bool has_scales_for_sm100(int64_t columns) const {
    return has_scale_per(1, columns) &&
           (layout.scale_transposed ? has_pad(4, 128) : has_pad(128, 4));
  }
  // Two codes a byte.
  bool is_packed_e2m1() const { return is(Element::kE2M1) && layout.element_bits == 4; }
  bool is_8_bit_float() const { return is(Element::kE4M3) || is(Element::kE5M2); }

  std::string text() const {
    const std::string usage = columnwise ? "columnwise" : "rowwise";
    return std::string(what) + " " + usage + " (" + std::string(word_of(plan->element)) + ", " +
           scales() + ")";
  }
  std::string scales() const {
    if (spans_tensor(layout)) return "one scale";
    return block_text(columnwise ? plan->columnwise : plan->rowwise) + " " +
           std::string(word_of(plan->scale));
  }
};

// A unit multiplies e4m3 by e4m3, or one of them by e5m2.
bool are_8_bit_floats(const Operand& a, const Operand& b) {
  return a.is_8_bit_float() && b.is_8_bit_float() && (a.is(Element::kE4M3) || b.is(Element::kE4M3));
}

bool both_have(const Operand& a, const Operand& b, ScaleType scale) {
  return a.has(scale) && b.has(scale);
}

// The kind of a @ b.T, or NC_DECODED.
nc_product_kind kind_of(const Operand& a, const Operand& b) {
  const bool in_order = !a.layout.transposed && !b.layout.transposed;
  if (both_have(a, b, ScaleType::kF32) && in_order) {
    if (spans_tensor(a.layout) && spans_tensor(b.layout) && are_8_bit_floats(a, b))
      return NC_TENSOR_BY_TENSOR;
    if (a.is(Element::kE4M3) && b.is(Element::kE4M3) && a.is_in_groups()) {
      if (b.is_in_squares()) return NC_1X128_BY_128X128;
      if (b.is_in_groups()) return NC_1X128_BY_1X128;
    }
  }
  // Those of sm_100 read their operands in either order.
  if (both_have(a, b, ScaleType::kE8M0) && a.has_scales_for_sm100(32) && b.has_scales_for_sm100(32) &&
      are_8_bit_floats(a, b))
    return NC_1X32_E8M0;
  const bool two_levels = a.plan->two_levels && b.plan->two_levels;
  if (two_levels && both_have(a, b, ScaleType::kE4M3Scale) && a.has_scales_for_sm100(16) &&
      b.has_scales_for_sm100(16) && a.is_packed_e2m1() && b.is_packed_e2m1() && in_order)
    return NC_1X16_E4M3;
  return NC_DECODED;
}

Product product_of(const Operand& a, const Operand& b) {
  const nc_product_kind kind = kind_of(a, b);
  const std::string operands = a.text() + " by " + b.text();
  if (kind == NC_DECODED) return {kind, operands + ": no matrix unit multiplies these."};
  return {kind, operands + ": " + kProductKinds[kind].name + "."};
}

// The plan that a name stands for; nothing, and a diagnostic, if there is none that can be cast to.
const Plan* partner(const Field<std::string>& name, const char* key, const Plan& plan,
                    const Plans& known, Diagnostics& diagnostics) {
  if (!name.known()) return nullptr;
  const Plan* found = &plan;
  if (name.value != kSelf && name.value != plan.name) {
    const auto place = known.find(name.value);
    if (place == known.end()) {
      std::vector<std::string_view> names{kSelf};
      for (const auto& [other, unused] : known) names.push_back(other);
      diagnostics.add(name.at,
                      std::string("products.") + key + " names no format: " +
                          in_quotes(name.value) + did_you_mean(name.value, names, "\""),
                      "\"self\", a format that comes with narrowcast, or one whose spec is given "
                      "along with this one");
      return nullptr;
    }
    found = &place->second;
  }
  if (!found->delayed_amax) return found;
  diagnostics.add(name.at,
                  std::string("products.") + key + " cannot be " + in_quotes(found->name) +
                      ", whose scale comes from a history",
                  "activations and gradients are cast once each, and have none; name a format with "
                  "amax \"current\"");
  return nullptr;
}

}  // namespace

ProductPlan products_of(const Format& format, const Plan& plan, const Plans& known,
                        Diagnostics& diagnostics) {
  ProductPlan products{};
  if (!format.has_products) return products;
  const Products& said = format.products;
  const Plan* input = partner(said.input, "input", plan, known, diagnostics);
  const Plan* gradient = partner(said.gradient, "gradient", plan, known, diagnostics);
  if (input == nullptr || gradient == nullptr) return products;
  products.input = input->name;
  products.gradient = gradient->name;
  products.stochastic_gradient = said.gradient_rounding.value == Rounding::kStochastic;
  products.product[NC_PRODUCT_FORWARD] =
      product_of(Operand::rowwise("input", *input), Operand::rowwise("weight", plan));
  products.product[NC_PRODUCT_INPUT_GRADIENT] =
      product_of(Operand::rowwise("gradient", *gradient), Operand::transposed("weight", plan));
  products.product[NC_PRODUCT_WEIGHT_GRADIENT] =
      product_of(Operand::transposed("gradient", *gradient), Operand::transposed("input", *input));
  return products;
}

}  // namespace narrowcast::codegen
