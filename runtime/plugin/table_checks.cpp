#include "runtime/plugin/table_checks.hpp"

#include <cmath>
#include <string_view>

#include "runtime/geometry/geometry.hpp"
#include "runtime/reduce/part.hpp"

namespace narrowcast {
namespace {

// Of rows, columns and steps. Far more than any format has, and few enough that what geometry
// multiplies with them stays within 64 bits.
constexpr int64_t kMost = 1 << 20;

std::string indexed(std::string name, int index) {
  return name.append("[").append(std::to_string(index)).append("]");
}
std::string quoted(std::string_view text) { return std::string("'").append(text).append("'"); }

// Keeps the first fault.
class Checks {
 public:
  std::string fault;

  void require(bool right, const std::string& field, const std::string& value,
               const std::string& expected) {
    if (right || !fault.empty()) return;
    fault = "is broken: " + field + " of its table is " + value + ", not " + expected +
            ". Build it again with `narrowcast build`";
  }
  void number(const std::string& field, int64_t value, int64_t least, int64_t most) {
    require(least <= value && value <= most, field, std::to_string(value),
            least == most ? std::to_string(least)
                          : "from " + std::to_string(least) + " to " + std::to_string(most));
  }
  void positive(const std::string& field, double value) {
    require(std::isfinite(value) && value > 0, field, std::to_string(value), "a positive number");
  }
  void flag(const std::string& field, int64_t value) { number(field, value, 0, 1); }
  void multiple(const std::string& field, int64_t value, const std::string& of, int64_t divisor) {
    number(of, divisor, 1, kMost);
    number(field, value, 1, kMost);
    if (fault.empty())
      require(value % divisor == 0, field, std::to_string(value),
              "a multiple of " + of + ", " + std::to_string(divisor));
  }
  template <class Pointer>
  void there(const std::string& field, Pointer pointer) {
    require(pointer != nullptr, field, "NULL", "something");
  }
  template <class Function>
  void there_if(bool needed, const std::string& field, Function function) {
    if (needed) return there(field, function);
    require(function == nullptr, field, "a function", "NULL, for the format does not need it");
  }
};

void check_layout(Checks& checks, const std::string& usage, const nc_layout& layout) {
  const auto field = [&](const char* name) { return usage + "." + name; };
  if (spans_tensor(layout)) {
    checks.number(field("block_columns"), layout.block_columns, 0, 0);
  } else {
    checks.multiple(field("block_rows"), layout.block_rows, field("scale_per_rows"),
                    layout.scale_per_rows);
    checks.multiple(field("block_columns"), layout.block_columns, field("scale_per_columns"),
                    layout.scale_per_columns);
    checks.number(field("scale_pad_rows"), layout.scale_pad_rows, 1, kMost);
    checks.number(field("scale_pad_columns"), layout.scale_pad_columns, 1, kMost);
  }
  checks.flag(field("transposed"), layout.transposed);
  checks.flag(field("scale_transposed"), layout.scale_transposed);
  const int32_t bits = layout.element_bits, bytes = layout.scale_bytes;
  checks.require(bits == 4 || bits == 6 || bits == 8, field("element_bits"), std::to_string(bits),
                 "4, 6 or 8");
  checks.require(bytes == 1 || bytes == 4, field("scale_bytes"), std::to_string(bytes), "1 or 4");
}

void check_words(Checks& checks, const nc_format& format) {
  checks.there("name", format.name);
  checks.there("summary", format.summary);
  checks.there("reference", format.reference);
  checks.there("element", format.element);
  checks.there("packing", format.packing);
  checks.there("scale", format.scale);
  checks.there("scale_dtype", format.scale_dtype);
  checks.there("scale_rule", format.scale_rule);
  checks.there("amax", format.amax);
  if (!checks.fault.empty()) return;
  checks.require(*format.name != '\0', "name", "empty", "a name");
  const std::string_view amax = format.amax;
  checks.require(amax == "current" || amax == "delayed", "amax", quoted(amax),
                 "'current' or 'delayed'");
}

void check_facts(Checks& checks, const nc_format& format) {
  check_layout(checks, "rowwise", format.rowwise);
  check_layout(checks, "columnwise", format.columnwise);
  const bool spans = spans_tensor(format.rowwise);
  checks.require(spans == spans_tensor(format.columnwise), "columnwise.block_rows",
                 std::to_string(format.columnwise.block_rows),
                 "0 where rowwise.block_rows is, and there alone");
  // Buffers are made of this dtype, and kernels write scale_bytes to each entry.
  const std::string_view dtype = format.scale_dtype;
  for (const nc_layout* layout : {&format.rowwise, &format.columnwise}) {
    const char* expected = layout->scale_bytes == 4 ? "float32" : "uint8";
    checks.require(dtype == expected, "scale_dtype", quoted(dtype),
                   quoted(expected) + ", of " + std::to_string(layout->scale_bytes) + " bytes");
  }
  checks.flag("columnwise_derived", format.columnwise_derived);
  checks.number("tensor_amax", format.tensor_amax, spans || format.tensor_scale != nullptr,
                spans || format.tensor_scale != nullptr);
  checks.multiple("row_step", format.row_step, "shard_row_step", format.shard_row_step);
  checks.positive("bits_per_element", format.bits_per_element);
  checks.positive("wire_bits_per_element", format.wire_bits_per_element);
  if (format.tensor_scale != nullptr) checks.positive("tensor_range", format.tensor_range);
  for (int i = 0; i < NC_OPERATION_COUNT; ++i) {
    const std::string rule = indexed("rules", i);
    checks.flag(rule + ".exact", format.rules[i].exact);
    checks.there(rule + ".text", format.rules[i].text);
  }
}

void check_products(Checks& checks, const nc_products& products) {
  if (products.input != nullptr) checks.there("products.gradient", products.gradient);
  for (int i = 0; i < NC_PRODUCT_COUNT; ++i) {
    const std::string product = indexed("products.product", i);
    checks.number(product + ".kind", products.product[i].kind, 0, NC_PRODUCT_KIND_COUNT - 1);
    if (products.input != nullptr) checks.there(product + ".reason", products.product[i].reason);
  }
}

// Beside them an optimizer's state has entries that every rule has.
void check_state_names(Checks& checks, const std::string& what, const char* const* names) {
  checks.there(what, names);
  for (; checks.fault.empty() && *names != nullptr; ++names) {
    const std::string_view name = *names;
    const bool is_taken =
        name == "step" || name == "master" || name == "residual" || name == "history";
    checks.require(!is_taken, what, quoted(name),
                   "another name, because every rule's state may have a step, a master, a residual "
                   "and a history");
  }
}

void check_rules(Checks& checks, const nc_plugin& table) {
  checks.there("update_rules", table.update_rules);
  checks.number("update_rule_count", table.update_rule_count, 1, 1 << 10);
  for (int64_t i = 0; checks.fault.empty() && i < table.update_rule_count; ++i) {
    const std::string rule = indexed("update_rules", static_cast<int>(i));
    checks.there(rule + ".name", table.update_rules[i].name);
    check_state_names(checks, rule + ".states", table.update_rules[i].states);
    checks.there(rule + ".options", table.update_rules[i].options);
    checks.there(rule + ".at_step", table.update_rules[i].at_step);
  }
}

void check_states(Checks& checks, const nc_plugin& table) {
  if (table.state_format_count == 0) return;
  checks.there("state_formats", table.state_formats);
  checks.number("state_format_count", table.state_format_count, 0, 1 << 10);
  for (int64_t i = 0; checks.fault.empty() && i < table.state_format_count; ++i) {
    const std::string state = indexed("state_formats", static_cast<int>(i));
    checks.there(state + ".name", table.state_formats[i].name);
    checks.number(state + ".block", table.state_formats[i].block, 1, kMost);
  }
}

void check_tiles(Checks& checks, const std::string& name, const nc_machine& machine) {
  checks.number(name + ".tile_rows", machine.tile_rows, 1, kMost);
  checks.number(name + ".tile_columns", machine.tile_columns, 1, kMost);
  checks.number(name + ".step_rows", machine.step_rows, 1, kMost);
}

void check_updates(Checks& checks, const std::string& name, int64_t rules,
                   const nc_machine& machine, bool waits) {
  checks.there(name + ".updates", machine.updates);
  for (int64_t i = 0; checks.fault.empty() && i < rules; ++i) {
    const std::string update = indexed(name + ".updates", static_cast<int>(i));
    checks.there_if(waits, update + ".update_amax", machine.updates[i].update_amax);
    checks.there_if(!waits, update + ".update", machine.updates[i].update);
    checks.there_if(name == "cuda", update + ".begin", machine.updates[i].begin);
  }
}

// Of plain parameters: there are kernels of the rules, and nothing else.
void check_plain(Checks& checks, const std::string& name, int64_t rules,
                 const nc_machine& machine) {
  check_tiles(checks, name, machine);
  check_updates(checks, name, rules, machine, /*waits=*/false);
}

void check_machine(Checks& checks, const std::string& name, const nc_format& format, int64_t rules,
                   const nc_machine& machine) {
  const auto field = [&](const char* member) { return name + "." + member; };
  check_tiles(checks, name, machine);
  checks.number(field("decode_tile_rows[0]"), machine.decode_tile_rows[0], 1, kMost);
  checks.number(field("decode_tile_rows[1]"), machine.decode_tile_rows[1], 1, kMost);
  checks.number(field("derive_tile_rows"), machine.derive_tile_rows, 1, kMost);
  checks.there(field("cast"), machine.cast);
  checks.there(field("collect"), machine.collect);
  checks.there(field("dequantize_rowwise"), machine.dequantize_rowwise);
  checks.there(field("dequantize_columnwise"), machine.dequantize_columnwise);
  checks.there(field("pack"), machine.pack);
  checks.there(field("unpack"), machine.unpack);
  const bool delayed = format.amax == std::string_view("delayed");
  const bool waits = format.tensor_amax != 0 && !delayed;  // a cast, for the amax of all shards
  checks.there_if(format.tensor_amax != 0, field("reduce_amax"), machine.reduce_amax);
  check_updates(checks, name, rules, machine, waits);
  checks.there_if(delayed, field("start_history"), machine.start_history);
  checks.there_if(delayed, field("record_amax"), machine.record_amax);
  checks.there_if(format.columnwise_derived != 0, field("derive_columnwise"),
                  machine.derive_columnwise);
  const bool parts = casts_parts(format.rowwise, format.tensor_amax != 0);
  checks.there_if(parts, field("cast_parts"), machine.cast_parts);
  checks.there_if(parts, field("add_parts"), machine.add_parts);
}

}  // namespace

std::string table_fault(const nc_plugin& table) {
  Checks checks;
  checks.there("format", table.format);
  checks.there("cpu", table.cpu);
  checks.there("cpu_variants", table.cpu_variants);
  checks.there("cpu_variant", table.cpu_variant);
  if (!checks.fault.empty()) return checks.fault;
  if (table.format->name == nullptr && table.route == nullptr) {
    check_rules(checks, table);
    check_states(checks, table);
    check_plain(checks, "cpu", table.update_rule_count, *table.cpu);
    if (table.cuda != nullptr) check_plain(checks, "cuda", table.update_rule_count, *table.cuda);
    return checks.fault;
  }
  checks.there("route", table.route);
  if (!checks.fault.empty()) return checks.fault;
  check_words(checks, *table.format);
  if (!checks.fault.empty()) return checks.fault;
  check_facts(checks, *table.format);
  check_products(checks, table.format->products);
  check_rules(checks, table);
  check_states(checks, table);
  check_machine(checks, "cpu", *table.format, table.update_rule_count, *table.cpu);
  if (table.cuda != nullptr)
    check_machine(checks, "cuda", *table.format, table.update_rule_count, *table.cuda);
  return checks.fault;
}

}  // namespace narrowcast
