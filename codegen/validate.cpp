#include "codegen/validate.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "codegen/golden_scale.hpp"
#include "codegen/text_rules.hpp"

namespace narrowcast::codegen {
namespace {

// The GPU holds a tile of 8 W rows x 128 columns in the registers of W <= 16 warps.
constexpr int64_t kLargestBlock = 128;
// Padding is written for every tensor, however small; the largest of the known layouts is 128.
constexpr int64_t kLargestPad = 1024;

std::string text_of(Block block) {
  return "[" + std::to_string(block.rows) + ", " + std::to_string(block.columns) + "]";
}

// ---- blocks ----

void block_fits_a_tile(const Format& format, Diagnostics& diagnostics) {
  const auto fits = [](int64_t n) {
    return n <= kLargestBlock && std::has_single_bit(static_cast<uint64_t>(n));
  };
  for (const Usage* usage : {&format.rowwise, &format.columnwise}) {
    const Field<Block>& block = usage->block;
    if (!known(block) || block.value.spans_tensor()) continue;
    if (fits(block.value.rows) && fits(block.value.columns)) continue;
    diagnostics.add(
        block.at, "block " + text_of(block.value) + " fits no tile",
        "rows and columns are powers of two, at most 128: a tile of 8 to 128 rows x 128 columns "
        "holds whole blocks");
  }
}

// A byte of a stored scale for each element at the most: the GPU gathers a tile's scales in shared
// memory, and where it derives bytes in the room of its codes.
void block_outnumbers_scale_bytes(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.scale)) return;
  const int64_t bytes = row_of(format.scale.value).bytes;
  for (const Usage* usage : {&format.rowwise, &format.columnwise}) {
    const Field<Block>& block = usage->block;
    if (!known(block) || block.value.spans_tensor()) continue;
    if (std::max(block.value.rows, block.value.columns) >= bytes) continue;
    const int64_t elements = block.value.rows * block.value.columns;
    if (elements >= bytes) continue;
    diagnostics.add(block.at,
                    "block " + text_of(block.value) + " has " + std::to_string(elements) +
                        (elements == 1 ? " element" : " elements") + " for a scale of " +
                        std::to_string(bytes) + " bytes",
                    "at least as many elements as the scale has bytes: a tile of the GPU has room "
                    "for one byte of scales for each element");
  }
}

void scale_per_divides_block(const Format& format, Diagnostics& diagnostics) {
  for (const Usage* usage : {&format.rowwise, &format.columnwise}) {
    if (!known(usage->block, usage->scale_per) || usage->block.value.spans_tensor()) continue;
    const Block block = usage->block.value, per = usage->scale_per.value;
    if (block.rows % per.rows == 0 && block.columns % per.columns == 0) continue;
    diagnostics.add(usage->scale_per.at,
                    "scale_per " + text_of(per) + " does not divide the block " + text_of(block),
                    "a block's scale is stored once or repeated, so that each stored scale belongs "
                    "to one block");
  }
}

void scale_pad_stays_small(const Format& format, Diagnostics& diagnostics) {
  for (const Usage* usage : {&format.rowwise, &format.columnwise}) {
    const Field<Block>& pad = usage->scale_pad;
    if (!known(pad) || std::max(pad.value.rows, pad.value.columns) <= kLargestPad) continue;
    diagnostics.add(
        pad.at, "scale_pad " + text_of(pad.value) + " is too large",
        "at most 1024 in each direction: the padding is stored for every tensor, however small");
  }
}

// ---- tensor blocks ----

void usages_agree_on_a_tensor_block(const Format& format, Diagnostics& diagnostics) {
  const Field<Block>&rowwise = format.rowwise.block, &columnwise = format.columnwise.block;
  if (!known(rowwise, columnwise)) return;
  if (rowwise.value.spans_tensor() == columnwise.value.spans_tensor()) return;
  const bool rowwise_spans = rowwise.value.spans_tensor();
  diagnostics.add(rowwise_spans ? columnwise.at : rowwise.at,
                  std::string("the ") + (rowwise_spans ? "rowwise" : "columnwise") +
                      " block spans the tensor, the " + (rowwise_spans ? "columnwise" : "rowwise") +
                      " block " + text_of(rowwise_spans ? columnwise.value : rowwise.value) +
                      " does not",
                  "both usages have a block of \"tensor\", or neither");
}

void tensor_block_has_one_scale(const Format& format, Diagnostics& diagnostics) {
  for (const Usage* usage : {&format.rowwise, &format.columnwise}) {
    if (!known(usage->block) || !usage->block.value.spans_tensor()) continue;
    const auto refuse = [&](const auto& field, std::string_view key) {
      if (!field.given()) return;
      diagnostics.add(field.at, std::string(key) + " has no meaning with a block of \"tensor\"",
                      "one scale serves the tensor; leave the key out");
    };
    refuse(usage->scale_per, "scale_per");
    refuse(usage->scale_pad, "scale_pad");
    refuse(usage->scale_transposed, "scale_transposed");
  }
}

void delayed_amax_needs_a_tensor_block(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.amax, format.rowwise.block) || format.amax.value != Amax::kDelayed) return;
  if (format.rowwise.block.value.spans_tensor()) return;
  diagnostics.add(format.amax.at,
                  "amax \"delayed\" with a block of " + text_of(format.rowwise.block.value),
                  "only a scale that spans the tensor has a history; use a block of \"tensor\", or "
                  "amax \"current\"");
}

void quotient_needs_a_current_amax(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.amax, format.rule) || format.amax.value != Amax::kDelayed) return;
  if (format.rule.value != ScaleRule::kQuotient) return;
  diagnostics.add(format.amax.at, "amax \"delayed\" with scale rule \"quotient\"",
                  "a history keeps multipliers, from which this rule's scales do not follow; use "
                  "another rule, or amax \"current\"");
}

// ---- scales ----

void scale_rule_is_defined_for_scale_type(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.rule, format.scale)) return;
  std::vector<std::string_view> defined;
  for (const GoldenRule& golden : golden_rules()) {
    if (golden.scale != format.scale.value) continue;
    if (golden.rule == format.rule.value) return;
    defined.push_back(word_of(golden.rule));
  }
  const std::string scale = in_quotes(word_of(format.scale.value));
  diagnostics.add(format.rule.at,
                  "scale rule " + in_quotes(word_of(format.rule.value)) +
                      " is not defined for scales of type " + scale,
                  "for " + scale + " it is " + listed(defined, "\""));
}

void nearest_even_needs_e2m1(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.rule, format.element)) return;
  if (format.rule.value != ScaleRule::kNearestEven || format.element.value == Element::kE2M1)
    return;
  diagnostics.add(format.element.at,
                  "scale rule \"nearest_even\" with elements of type " +
                      in_quotes(word_of(format.element.value)),
                  "the rule is defined for element.type = \"e2m1\"");
}

void nearest_even_needs_a_tensor_scale(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.rule, format.tensor_scale)) return;
  if (format.rule.value != ScaleRule::kNearestEven) return;
  if (format.tensor_scale.value != TensorScale::kNone) return;
  diagnostics.add(format.rule.at, "scale rule \"nearest_even\" without a tensor scale",
                  "it makes block scales under a tensor scale; add tensor_scale.type = \"f32\"");
}

void tensor_scale_needs_nearest_even(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.rule, format.tensor_scale) || format.tensor_scale.value == TensorScale::kNone)
    return;
  if (format.rule.value == ScaleRule::kNearestEven) return;
  diagnostics.add(
      format.tensor_scale.at,
      "a tensor scale with scale rule " + in_quotes(word_of(format.rule.value)),
      "only \"nearest_even\" makes scales of two levels; leave tensor_scale out, or use that rule");
}

void tensor_scale_stands_above_blocks(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.tensor_scale, format.rowwise.block)) return;
  if (format.tensor_scale.value == TensorScale::kNone) return;
  if (!format.rowwise.block.value.spans_tensor()) return;
  diagnostics.add(
      format.tensor_scale.at, "a tensor scale above a block of \"tensor\"",
      "two scales for the same elements; leave tensor_scale out, or use smaller blocks");
}

// ---- formats of an optimizer's state ----

void state_block_fits_a_row(const Format& format, Diagnostics& diagnostics) {
  const Field<int64_t>& block = format.state.block;
  if (!known(block)) return;
  for (const int64_t fitting : {32, 64, 128}) {
    if (block.value == fitting) return;
  }
  diagnostics.add(block.at, "block " + std::to_string(block.value) + " fits no row of a tile",
                  "it is 32, 64 or 128: a warp of the GPU has 128 elements of a row");
}

void state_root_is_a_square_root(const Format& format, Diagnostics& diagnostics) {
  for (const Field<int64_t>* root : {&format.state.signed_root, &format.state.nonnegative_root}) {
    if (!known(*root)) continue;
    if (root->value == 1 || root->value == 2 || root->value == 4) continue;
    diagnostics.add(root->at, "root " + std::to_string(root->value) + " is not known",
                    "codes are of the value itself, 1, of its square root, 2, or of that one's, 4");
  }
}

#define NC_RULE(function, ...) \
  { #function, function, __VA_ARGS__ }
constexpr Rule kRules[] = {
    NC_RULE(vocabulary_is_known),
    NC_RULE(name_is_an_identifier),
    NC_RULE(name_is_not_self),
    NC_RULE(name_is_short),
    NC_RULE(name_is_the_file_name),
    NC_RULE(summary_is_one_sentence),
    NC_RULE(reference_is_one_line),
    NC_RULE(block_fits_a_tile, Kind::kWeight),
    NC_RULE(block_outnumbers_scale_bytes, Kind::kWeight),
    NC_RULE(scale_per_divides_block, Kind::kWeight),
    NC_RULE(scale_pad_stays_small, Kind::kWeight),
    NC_RULE(usages_agree_on_a_tensor_block, Kind::kWeight),
    NC_RULE(tensor_block_has_one_scale, Kind::kWeight),
    NC_RULE(delayed_amax_needs_a_tensor_block, Kind::kWeight),
    NC_RULE(quotient_needs_a_current_amax, Kind::kWeight),
    NC_RULE(scale_rule_is_defined_for_scale_type, Kind::kWeight),
    NC_RULE(nearest_even_needs_e2m1, Kind::kWeight),
    NC_RULE(nearest_even_needs_a_tensor_scale, Kind::kWeight),
    NC_RULE(tensor_scale_needs_nearest_even, Kind::kWeight),
    NC_RULE(tensor_scale_stands_above_blocks, Kind::kWeight),
    NC_RULE(state_block_fits_a_row, Kind::kState),
    NC_RULE(state_root_is_a_square_root, Kind::kState),
};
#undef NC_RULE

}  // namespace

std::span<const Rule> rules() { return kRules; }

void validate(const Format& format, Diagnostics& diagnostics) {
  for (const Rule& rule : kRules) {
    if (!rule.kind || (known(format.kind) && rule.kind == format.kind.value))
      rule.check(format, diagnostics);
  }
}

}  // namespace narrowcast::codegen
