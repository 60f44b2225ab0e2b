// Tables with one wrong field each: refused by its name and its value, before anything divides by
// it or calls it.
#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>

#include "runtime/optimizer/plain.hpp"
#include "runtime/plugin/same_facts.hpp"
#include "runtime/plugin/table_checks.hpp"
#include "runtime/reduce/part.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

// A copy of a plugin's table that can be changed.
struct Table {
  nc_plugin plugin;
  nc_format format;
  nc_machine cpu;

  explicit Table(const nc_plugin& of) : plugin(of), format(*of.format), cpu(*of.cpu) {
    plugin.format = &format;
    plugin.cpu = &cpu;
    plugin.cuda = nullptr;
  }
};

const nc_plugin& one_that(const std::function<bool(const nc_format&)>& is) {
  for (const nc_plugin* plugin : all_plugins()) {
    if (is(*plugin->format)) return *plugin;
  }
  FAIL("no format of the build has what this tests");
  return *all_plugins().front();
}
const nc_plugin& with_blocks() {
  return one_that([](const nc_format& f) { return f.rowwise.block_rows != 0 && !f.tensor_amax; });
}

// What is said of a table after a change.
std::string fault_of(const nc_plugin& plugin, const std::function<void(Table&)>& change) {
  Table table(plugin);
  change(table);
  return table_fault(table.plugin);
}

struct Wrong {
  const char* said;
  std::function<void(Table&)> change;
};

void check(const nc_plugin& plugin, const std::vector<Wrong>& tables) {
  for (const Wrong& table : tables) {
    const auto& said = table.said;
    CAPTURE(said);
    const std::string fault = fault_of(plugin, table.change);
    CAPTURE(fault);
    CHECK(fault.starts_with(std::string("is broken: ") + said));
    CHECK(fault.ends_with("Build it again with `narrowcast build`"));
  }
}

TEST_CASE("the tables of the build have no fault") {
  for (const nc_plugin* plugin : all_plugins()) CHECK(table_fault(*plugin) == "");
}

TEST_CASE("zero block sizes, and other numbers that geometry would divide by or overflow with") {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  check(
      with_blocks(),
      {
          {"columnwise.block_columns of its table is 0, not from 1 to 1048576",
           [](Table& t) { t.format.columnwise.block_columns = 0; }},
          {"rowwise.scale_per_rows of its table is 0,",
           [](Table& t) { t.format.rowwise.scale_per_rows = 0; }},
          {"rowwise.scale_per_columns of its table is -1,",
           [](Table& t) { t.format.rowwise.scale_per_columns = -1; }},
          {"columnwise.scale_pad_rows of its table is 0,",
           [](Table& t) { t.format.columnwise.scale_pad_rows = 0; }},
          {"columnwise.scale_pad_columns of its table is 1048577,",
           [](Table& t) { t.format.columnwise.scale_pad_columns = 1048577; }},
          {"rowwise.block_rows of its table is -9223372036854775808,",
           [](Table& t) { t.format.rowwise.block_rows = kLeast; }},
          {"columnwise.block_rows of its table is 1000003, not a multiple of "
           "columnwise.scale_per_rows, 2",
           [](Table& t) {
             t.format.columnwise.block_rows = 1000003, t.format.columnwise.scale_per_rows = 2;
           }},
          {"rowwise.element_bits of its table is 5, not 4, 6 or 8",
           [](Table& t) { t.format.rowwise.element_bits = 5; }},
          {"rowwise.scale_bytes of its table is 2,",
           [](Table& t) { t.format.rowwise.scale_bytes = 2; }},
          {"rowwise.transposed of its table is 2,",
           [](Table& t) { t.format.rowwise.transposed = 2; }},
          {"shard_row_step of its table is 0,", [](Table& t) { t.format.shard_row_step = 0; }},
          {"row_step of its table is -32,", [](Table& t) { t.format.row_step = -32; }},
          {"bits_per_element of its table is nan,",
           [](Table& t) { t.format.bits_per_element = std::numeric_limits<double>::quiet_NaN(); }},
          {"products.product[1].kind of its table is 6,",
           [](Table& t) { t.format.products.product[1].kind = NC_PRODUCT_KIND_COUNT; }},
          {"cpu.tile_rows of its table is 0,", [](Table& t) { t.cpu.tile_rows = 0; }},
          {"cpu.tile_columns of its table is -1,", [](Table& t) { t.cpu.tile_columns = -1; }},
          {"cpu.step_rows of its table is 0,", [](Table& t) { t.cpu.step_rows = 0; }},
          {"cpu.decode_tile_rows[0] of its table is 0,",
           [](Table& t) { t.cpu.decode_tile_rows[0] = 0; }},
          {"cpu.decode_tile_rows[1] of its table is -1,",
           [](Table& t) { t.cpu.decode_tile_rows[1] = -1; }},
          {"cpu.derive_tile_rows of its table is 0,", [](Table& t) { t.cpu.derive_tile_rows = 0; }},
      });
}

TEST_CASE("usages of which one spans the tensor, and dtypes of another size") {
  const nc_plugin spanning = one_that([](const nc_format& f) { return !f.rowwise.block_rows; });
  check(with_blocks(),
        {{"columnwise.block_rows of its table is 0, not 0 where rowwise.block_rows", [](Table& t) {
            t.format.columnwise.block_rows = t.format.columnwise.block_columns = 0;
          }}});
  check(spanning,
        {
            {"rowwise.block_columns of its table is 32, not 0",
             [](Table& t) { t.format.rowwise.block_columns = 32; }},
            {"scale_dtype of its table is 'uint8', not 'float32', of 4 bytes",
             [](Table& t) { t.format.scale_dtype = "uint8"; }},
            {"tensor_amax of its table is 0, not 1", [](Table& t) { t.format.tensor_amax = 0; }},
        });
  check(one_that([](const nc_format& f) { return f.tensor_scale != nullptr; }),
        {{"tensor_range of its table is 0.0", [](Table& t) { t.format.tensor_range = 0; }}});
}

TEST_CASE("strings and functions that are not there, or not needed") {
  check(
      with_blocks(),
      {
          {"format of its table is NULL", [](Table& t) { t.plugin.format = nullptr; }},
          {"cpu of its table is NULL", [](Table& t) { t.plugin.cpu = nullptr; }},
          {"cpu_variants of its table is NULL", [](Table& t) { t.plugin.cpu_variants = nullptr; }},
          {"route of its table is NULL", [](Table& t) { t.plugin.route = nullptr; }},
          {"name of its table is NULL", [](Table& t) { t.format.name = nullptr; }},
          {"name of its table is empty", [](Table& t) { t.format.name = ""; }},
          {"scale_rule of its table is NULL", [](Table& t) { t.format.scale_rule = nullptr; }},
          {"amax of its table is 'later'", [](Table& t) { t.format.amax = "later"; }},
          {"rules[2].text of its table is NULL",
           [](Table& t) { t.format.rules[2].text = nullptr; }},
          {"products.gradient of its table is NULL",
           [](Table& t) { t.format.products.input = "x", t.format.products.gradient = nullptr; }},
          {"cpu.cast of its table is NULL", [](Table& t) { t.cpu.cast = nullptr; }},
          {"cpu.pack of its table is NULL", [](Table& t) { t.cpu.pack = nullptr; }},
          {"cpu.updates of its table is NULL", [](Table& t) { t.cpu.updates = nullptr; }},
          {"update_rule_count of its table is 0", [](Table& t) { t.plugin.update_rule_count = 0; }},
          {"state_formats of its table is NULL",
           [](Table& t) { t.plugin.state_formats = nullptr; }},
          {"cpu.reduce_amax of its table is a function, not NULL",
           [](Table& t) { t.cpu.reduce_amax = t.cpu.cast; }},
      });
  check(one_that([](const nc_format& f) { return casts_parts(f.rowwise, f.tensor_amax != 0); }),
        {
            {"cpu.cast_parts of its table is NULL", [](Table& t) { t.cpu.cast_parts = nullptr; }},
            {"cpu.add_parts of its table is NULL", [](Table& t) { t.cpu.add_parts = nullptr; }},
        });
  check(one_that([](const nc_format& f) { return f.amax == std::string("delayed"); }),
        {
            {"cpu.record_amax of its table is NULL", [](Table& t) { t.cpu.record_amax = nullptr; }},
            {"cpu.derive_columnwise of its table is NULL",
             [](Table& t) { t.cpu.derive_columnwise = nullptr; }},
        });
}

TEST_CASE("a library of plain parameters has kernels of its rules, and nothing else") {
  CHECK(table_fault(plain_plugin()) == "");
  CHECK(format_of(plain_plugin()) == "");
  static constexpr const char* kTaken[] = {"momentum", "residual", nullptr};
  static nc_update_rule rule = *plain_plugin().update_rules;
  rule.states = kTaken;
  check(plain_plugin(),
        {{"update_rules[0].states of its table is 'residual', not another name, because",
          [](Table& t) { t.plugin.update_rules = &rule; }},
         {"cpu.tile_columns of its table is 0,", [](Table& t) { t.cpu.tile_columns = 0; }},
         {"cpu.updates of its table is NULL", [](Table& t) { t.cpu.updates = nullptr; }},
         {"update_rules of its table is NULL", [](Table& t) { t.plugin.update_rules = nullptr; }},
         {"route of its table is NULL", [](Table& t) { t.format.name = "x"; }}});
}

TEST_CASE("what two libraries of one format must say alike") {
  const nc_plugin& plugin = with_blocks();
  const auto is_same_after = [&](const std::function<void(Table&)>& change) {
    Table table(plugin);
    change(table);
    return same_format(table.plugin, plugin) && same_format(plugin, table.plugin);
  };
  CHECK(same_format(plain_plugin(), plain_plugin()));
  CHECK(!same_format(plain_plugin(), plugin));
  std::string name = plugin.format->name;
  CHECK(is_same_after([&](Table& t) { t.format.name = name.c_str(); }));
  CHECK(is_same_after([](Table& t) { t.plugin.update_rule_count = 0; }));
  CHECK(!is_same_after([](Table& t) { t.format.rules[1].text = "another"; }));
  CHECK(!is_same_after([](Table& t) { t.format.tensor_scale = "f32"; }));
  CHECK(!is_same_after([](Table& t) { t.format.columnwise.scale_bytes += 1; }));
  CHECK(!is_same_after([](Table& t) { t.format.products.product[2].kind += 1; }));
  CHECK(!is_same_after([](Table& t) { t.cpu.tile_rows += 1; }));
}

TEST_CASE("what two libraries with one rule must say alike") {
  static const char* const kNames[] = {"another", nullptr};
  for (int64_t i = 0; i < plain_plugin().update_rule_count; ++i) {
    const nc_update_rule& rule = plain_plugin().update_rules[i];
    nc_update_rule other = rule;
    CHECK(same_rule(rule, other));
    other.options = kNames;
    CHECK(!same_rule(rule, other));
    other = rule;
    other.states = kNames;
    CHECK(!same_rule(rule, other));
    static constexpr int32_t kNonnegative[NC_STATE_COUNT] = {1, 0};
    other = rule;
    other.nonnegative = kNonnegative;
    CHECK(!same_rule(rule, other));
    CHECK(!same_rule(other, rule));
  }
}

}  // namespace
}  // namespace narrowcast::test
