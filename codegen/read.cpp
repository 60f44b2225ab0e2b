#include "codegen/read.hpp"

#include "codegen/limits.hpp"
#include "codegen/table_reader.hpp"

namespace narrowcast::codegen {
namespace {

Usage read_usage(TableReader table) {
  Usage usage;
  usage.block = table.block("block");
  usage.scale_per = table.pair_or("scale_per", usage.block);
  usage.scale_pad = table.pair_or("scale_pad", Field<Block>{{1, 1}});
  usage.transposed = table.flag("transposed", Field<bool>{false});
  usage.scale_transposed = table.flag("scale_transposed", usage.transposed);
  table.finish();
  return usage;
}

Products read_products(TableReader table) {
  Products products;
  products.input = table.text("input");
  products.gradient = table.text("gradient");
  products.gradient_rounding = table.word_or("gradient_rounding", Rounding::kNearest);
  table.finish();
  return products;
}

Field<int64_t> read_root_of_codes(TableReader table) {
  const Field<int64_t> root = table.integer("root");
  table.finish();
  return root;
}

State read_state(TableReader& root) {
  State state;
  state.block = root.integer("block");
  state.signed_root = read_root_of_codes(root.table("signed"));
  state.nonnegative_root = read_root_of_codes(root.table("nonnegative"));
  return state;
}

Format read_root(TableReader root) {
  Format format;
  format.name = root.text("format");
  format.summary = root.text("summary");
  format.reference = root.text("reference");
  format.vocabulary = root.integer("vocabulary");
  format.kind = root.word_or("kind", Kind::kWeight);
  if (format.kind.known() && format.kind.value == Kind::kState) {
    format.state = read_state(root);
    root.finish();
    return format;
  }

  TableReader element = root.table("element");
  format.element = element.word<Element>("type");
  format.packing = element.word_or("packing", Packing::kDense);
  element.finish();

  TableReader scale = root.table("scale");
  format.scale = scale.word<ScaleType>("type");
  scale.finish();

  const bool two_levels = root.has("tensor_scale");
  TableReader tensor_scale = root.table("tensor_scale");
  if (two_levels) format.tensor_scale = tensor_scale.word<TensorScale>("type");
  tensor_scale.finish();

  format.rowwise = read_usage(root.table("rowwise"));
  format.columnwise = read_usage(root.table("columnwise"));

  TableReader quantize = root.table("quantize");
  format.rule = quantize.word<ScaleRule>("scale");
  format.amax = quantize.word_or("amax", Amax::kCurrent);
  quantize.finish();

  format.has_products = root.has("matmul");
  TableReader products = root.table("matmul");
  if (format.has_products) format.products = read_products(products);

  root.finish();
  return format;
}

}  // namespace

Format read(const Source& source, Diagnostics& diagnostics) {
  if (!is_within_limits(source, diagnostics)) return read_root({Span{}, diagnostics});
  const toml::parse_result parsed = toml::parse(std::string_view(source.text));
  if (parsed) return read_root({parsed.table(), "", Span{}, diagnostics});

  std::string_view reason = parsed.error().description();
  constexpr std::string_view kOpening = "Error while parsing ";
  if (reason.starts_with(kOpening)) reason.remove_prefix(kOpening.size());
  const Span at = span_of(parsed.error().source());
  diagnostics.add(at, "this is not TOML: " + std::string(reason));
  return read_root({at, diagnostics});
}

}  // namespace narrowcast::codegen
