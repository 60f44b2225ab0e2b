// What follows from each format of spec/, against the tables of docs/numerics.md.
#include "codegen/derive.hpp"
#include "runtime/geometry/geometry.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

struct Shapes {
  const char* name;
  Extent shape[NC_BUFFER_COUNT];  // of a 300 x 520 matrix
};

constexpr Shapes kShapes[] = {
    {"fp8_e4m3", {{300, 520}, {1, 1}, {520, 300}, {1, 1}}},
    {"fp8_e5m2", {{300, 520}, {1, 1}, {520, 300}, {1, 1}}},
    {"fp8_e4m3_delayed", {{300, 520}, {1, 1}, {520, 300}, {1, 1}}},
    {"fp8_block128", {{300, 520}, {3, 8}, {520, 300}, {5, 4}}},
    {"fp8_block128_f32", {{300, 520}, {3, 8}, {520, 300}, {5, 4}}},
    {"fp8_block1x128", {{300, 520}, {5, 300}, {520, 300}, {3, 520}}},
    {"fp8_block1x128_128x128", {{300, 520}, {5, 300}, {520, 300}, {5, 4}}},
    {"mxfp8_e4m3", {{300, 520}, {384, 20}, {300, 520}, {12, 640}}},
    {"mxfp8_e5m2", {{300, 520}, {384, 20}, {300, 520}, {12, 640}}},
    {"mxfp8_2d", {{300, 520}, {384, 20}, {300, 520}, {12, 640}}},
    {"nvfp4", {{300, 260}, {384, 36}, {520, 150}, {640, 20}}},
    {"nvfp4_1d", {{300, 260}, {384, 36}, {520, 150}, {640, 20}}},
    {"mxfp4", {{300, 260}, {384, 20}, {520, 150}, {640, 12}}},
    {"mxfp6_e2m3", {{300, 390}, {384, 20}, {520, 225}, {640, 12}}},
    {"mxfp6_e3m2", {{300, 390}, {384, 20}, {520, 225}, {640, 12}}},
    {"mxint8", {{300, 520}, {384, 20}, {300, 520}, {12, 640}}},
    {"int8_block32", {{300, 520}, {10, 17}, {520, 300}, {17, 10}}},
};

TEST_CASE("shapes") {
  for (const Shapes& row : kShapes) {
    CAPTURE(std::string(row.name));
    const Plan plan = plan_of(row.name);
    const ExampleUsage &rowwise = plan.example.rowwise, &columnwise = plan.example.columnwise;
    const BufferShape buffers[] = {rowwise.data, rowwise.scale, columnwise.data, columnwise.scale};
    for (size_t i = 0; i < NC_BUFFER_COUNT; ++i) {
      const BufferShape& buffer = buffers[i];
      CHECK(buffer.shape == row.shape[i]);
      const bool fp32 = i % 2 == 1 && plan.scale == ScaleType::kF32;
      CHECK(buffer.type == (fp32 ? "float32" : "uint8"));
    }
  }
  CHECK(std::size(kShapes) == good_specs().size());
}

struct Facts {
  const char* name;
  double bits, wire_bits;
  int64_t row_step, shard_row_step, column_step;
  bool derived, tensor_amax;
  int passes;
  int64_t tile_rows, strip_tiles;
};

constexpr Facts kFacts[] = {
    {"fp8_e4m3", 8, 8, 1, 1, 1, true, true, 2, 32, 1},
    {"fp8_e5m2", 8, 8, 1, 1, 1, true, true, 2, 32, 1},
    {"fp8_e4m3_delayed", 8, 8, 1, 1, 1, true, true, 1, 32, 1},
    {"fp8_block128", 8.001953125, 8.001953125, 128, 128, 128, true, false, 1, 128, 1},
    {"fp8_block128_f32", 8.001953125, 8.001953125, 128, 128, 128, true, false, 1, 128, 1},
    {"fp8_block1x128", 8.25, 8.25, 128, 128, 128, false, false, 1, 128, 1},
    {"fp8_block1x128_128x128", 8.25, 8.25, 128, 128, 128, false, false, 1, 128, 1},
    {"mxfp8_e4m3", 8.25, 8.25, 32, 32, 32, false, false, 1, 32, 1},
    {"mxfp8_e5m2", 8.25, 8.25, 32, 32, 32, false, false, 1, 32, 1},
    {"mxfp8_2d", 8.25, 8.0078125, 32, 32, 32, true, false, 1, 32, 1},
    {"nvfp4", 4.5, 4.03125, 16, 16, 16, true, true, 2, 64, 4},
    {"nvfp4_1d", 4.5, 4.5, 16, 16, 16, false, true, 2, 64, 4},
    {"mxfp4", 4.25, 4.25, 32, 32, 32, false, false, 1, 64, 4},
    {"mxfp6_e2m3", 6.25, 6.25, 32, 32, 32, false, false, 1, 64, 4},
    {"mxfp6_e3m2", 6.25, 6.25, 32, 32, 32, false, false, 1, 64, 4},
    {"mxint8", 8.25, 8.25, 32, 32, 32, false, false, 1, 32, 1},
    {"int8_block32", 8.03125, 8.03125, 32, 32, 32, true, false, 1, 32, 1},
};

TEST_CASE("facts") {
  for (const Facts& row : kFacts) {
    CAPTURE(std::string(row.name));
    const Plan plan = plan_of(row.name);
    CHECK(plan.bits_per_element == row.bits);
    CHECK(plan.wire_bits_per_element == row.wire_bits);
    CHECK(plan.row_step == row.row_step);
    CHECK(plan.shard_row_step == row.shard_row_step);
    CHECK(plan.column_step == row.column_step);
    CHECK(plan.columnwise_derived == row.derived);
    CHECK(plan.gather == (row.derived ? Gather::kRowwise : Gather::kByPass));
    CHECK(plan.tensor_amax == row.tensor_amax);
    CHECK(plan.optimizer_passes == row.passes);
    CHECK(plan.tile_rows == row.tile_rows);
    CHECK(plan.strip_tiles == row.strip_tiles);
  }
  CHECK(std::size(kFacts) == good_specs().size());
}

TEST_CASE("rules") {
  const auto check = [](const char* name, nc_operation operation, bool exact, const char* text) {
    CAPTURE(std::string(name));
    const Plan plan = plan_of(name);
    CHECK(plan.rules[operation].exact == exact);
    CHECK(plan.rules[operation].text == text);
  };
  check("mxfp4", NC_CUT, true, "cuts at multiples of 32 rows, 32 columns");
  check("fp8_e5m2", NC_CUT, true, "cuts anywhere");
  check("nvfp4", NC_TRANSPOSE, true, "the usages change places, over the same buffers");
  check("mxfp8_2d", NC_TRANSPOSE, false,
        "its columnwise bytes are not stored as the rowwise bytes of the transposed matrix");
  check("nvfp4_1d", NC_TRANSPOSE, false,
        "its columnwise bytes are quantized in blocks of their own, so the transposed matrix "
        "would have other values");
  check("nvfp4", NC_WRITE_PART, false,
        "without a master, for a scale spans the whole tensor; with one: exact, through it");
  check("mxint8", NC_WRITE_PART, true,
        "the bytes of the value quantized alone, which has blocks of its own");
}

// Whether a cut above `row` divides a block or a byte: looked up element by element.
bool divides(const Layout& layout, Extent matrix, int64_t row) {
  for (int64_t column = 0; column < matrix.columns; ++column) {
    const BitPosition above = element_position(layout, matrix, row - 1, column);
    const BitPosition below = element_position(layout, matrix, row, column);
    const int64_t last_byte_above = above.byte + (above.shift + layout.element_bits - 1) / 8;
    if (layout.transposed && last_byte_above == below.byte) return true;
  }
  return layout.block_rows > 0 && (row - 1) / layout.block_rows == row / layout.block_rows;
}

bool divides(const Plan& plan, int64_t row) {
  const Extent matrix{2 * plan.row_step + 4, 8};
  return divides(plan.rowwise, matrix, row) || divides(plan.columnwise, matrix, row);
}

TEST_CASE("the row step is the smallest that divides nothing") {
  for (const fs::path& path : good_specs()) {
    const Plan plan = plan_of(Source{path.string(), text_of(path)});
    CAPTURE(plan.name);
    CHECK(!divides(plan, plan.row_step));
    CHECK(!divides(plan, 2 * plan.row_step));
    for (int64_t step = 1; step < plan.row_step; ++step) CHECK(divides(plan, step));
  }
}

TEST_CASE("packing decides the row step where blocks do not, and one code a byte frees it") {
  const std::string text = text_of(kSource / "spec/mxfp6_e2m3.toml");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  const std::string one_row = with("[32, 1]", "[1, 32]");
  const Plan dense = plan_of(Source{"mxfp6_e2m3.toml", one_row});
  CHECK(dense.row_step == 4);
  CHECK(dense.shard_row_step == 1);
  std::string bytes = one_row;
  bytes.replace(bytes.find("scale.type"), 0, "element.packing = \"byte\"\n");
  const Plan loose = plan_of(Source{"mxfp6_e2m3.toml", bytes});
  CHECK(loose.row_step == 1);
  CHECK(loose.rowwise.element_bits == 8);
  CHECK(loose.bits_per_element == 8.25);
  CHECK(loose.tile_rows == 32);
  CHECK(loose.strip_tiles == 1);
}

TEST_CASE("type names") {
  CHECK(plan_of("mxint8").types.element == "MxInteger8");
  CHECK(plan_of("int8_block32").types.element == "Integer8");
  CHECK(plan_of("nvfp4").types.rule == "NearestEven<E4M3Scale, E2M1>");
  CHECK(plan_of("nvfp4").types.decoder == "TwoLevels<E2M1>");
  CHECK(plan_of("mxfp4").types.rule == "Even<E8M0, E2M1>");
  CHECK(plan_of("fp8_e5m2").types.decoder == "OneLevel<F32>");
}

TEST_CASE("reasons") {
  CHECK(
      plan_of("mxfp8_e4m3").reasons.columnwise ==
      "Columnwise: one scale for each 32x1 block; other groups than rowwise, so quantized again.");
  CHECK(plan_of("nvfp4").reasons.columnwise ==
        "Columnwise: the same blocks, so the same codes and scales, stored transposed.");
  CHECK(plan_of("mxfp8_2d").reasons.columnwise ==
        "Columnwise: the same blocks, so the same codes and scales, the scales laid out along the "
        "columns.");
  CHECK(plan_of("fp8_e4m3").reasons.columnwise ==
        "Columnwise: the same scale, so the same codes, stored transposed.");
  CHECK(plan_of("fp8_block128").reasons.first_pass.empty());
  CHECK(plan_of("fp8_e4m3")
            .reasons.first_pass.ends_with("so a pass that finds it goes before this one."));
  CHECK(plan_of("fp8_e4m3_delayed")
            .reasons.first_pass.ends_with("so no pass needs to go before this one."));
}

}  // namespace
}  // namespace narrowcast::codegen::test
