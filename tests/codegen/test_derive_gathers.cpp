// What the gathers of a format carry in each phase.
#include "codegen/derive.hpp"
#include "runtime/geometry/geometry.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

struct Carries {
  const char* name;
  const char* phase;
  std::vector<Carried> carried;
};

Carried of_data(nc_buffer buffer, bool along_columns) {
  return {buffer, false, along_columns, 1, 1, false, {}};
}
Carried of_scales(nc_buffer buffer, bool along_columns, Extent equal = {1, 1}) {
  return {buffer, true, along_columns, equal.rows, equal.columns, equal.rows * equal.columns > 1,
          {}};
}

// A format of each kind.
const Carries kCarries[] = {
    {"mxfp8_e4m3",
     "forward",
     {of_data(NC_ROWWISE_DATA, false), of_scales(NC_ROWWISE_SCALE, false)}},
    {"mxfp8_e4m3",
     "backward",
     {of_data(NC_COLUMNWISE_DATA, false), of_scales(NC_COLUMNWISE_SCALE, false)}},
    {"mxfp8_2d",
     "always",
     {of_data(NC_ROWWISE_DATA, false), of_scales(NC_ROWWISE_SCALE, false, {32, 1})}},
    {"nvfp4",
     "always",
     {of_data(NC_ROWWISE_DATA, false), of_scales(NC_ROWWISE_SCALE, false, {16, 1})}},
    {"mxfp6_e2m3",
     "backward",
     {of_data(NC_COLUMNWISE_DATA, true), of_scales(NC_COLUMNWISE_SCALE, true)}},
    {"fp8_block1x128",
     "both",
     {of_data(NC_ROWWISE_DATA, false), of_data(NC_COLUMNWISE_DATA, true),
      of_scales(NC_ROWWISE_SCALE, true), of_scales(NC_COLUMNWISE_SCALE, false)}},
    {"fp8_e4m3", "always", {of_data(NC_ROWWISE_DATA, false)}},
};

TEST_CASE("gathers") {
  for (const Carries& row : kCarries) {
    CAPTURE(std::string(row.name));
    CAPTURE(std::string(row.phase));
    const Plan plan = plan_of(row.name);
    CHECK(plan.gathers.size() == (plan.columnwise_derived ? 1 : 3));
    const auto gather =
        std::find_if(plan.gathers.begin(), plan.gathers.end(),
                     [&](const GatherOfPhase& one) { return one.name == row.phase; });
    REQUIRE(gather != plan.gathers.end());
    REQUIRE(gather->carried.size() == row.carried.size());
    for (size_t i = 0; i < row.carried.size(); ++i) {
      const Carried &carried = gather->carried[i], &expected = row.carried[i];
      CAPTURE(i);
      CHECK(carried.buffer == expected.buffer);
      CHECK(carried.scales == expected.scales);
      CHECK(carried.along_columns == expected.along_columns);
      CHECK(carried.equal_rows == expected.equal_rows);
      CHECK(carried.equal_columns == expected.equal_columns);
      CHECK(carried.repeats == expected.repeats);
    }
  }
}

}  // namespace
}  // namespace narrowcast::codegen::test
