// Which matrix unit multiplies the operands of each product, against the kinds that units take.
#include <cstring>
#include <sstream>
#include <tuple>

#include "codegen/load.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

struct Kinds {
  const char *name, *input, *gradient;
  bool stochastic;
  nc_product_kind kind[NC_PRODUCT_COUNT];
};

constexpr Kinds kKinds[] = {
    {"fp8_e4m3",
     "fp8_e4m3",
     "fp8_e5m2",
     false,
     {NC_TENSOR_BY_TENSOR, NC_TENSOR_BY_TENSOR, NC_TENSOR_BY_TENSOR}},
    {"fp8_e4m3_delayed",
     "fp8_e4m3",
     "fp8_e5m2",
     false,
     {NC_TENSOR_BY_TENSOR, NC_TENSOR_BY_TENSOR, NC_TENSOR_BY_TENSOR}},
    {"fp8_block128",
     "fp8_block1x128_128x128",
     "fp8_block1x128",
     false,
     {NC_1X128_BY_128X128, NC_1X128_BY_128X128, NC_1X128_BY_128X128}},
    {"fp8_block128_f32",
     "fp8_block1x128_128x128",
     "fp8_block1x128",
     false,
     {NC_1X128_BY_128X128, NC_1X128_BY_128X128, NC_1X128_BY_128X128}},
    {"mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3", false, {NC_1X32_E8M0, NC_1X32_E8M0, NC_1X32_E8M0}},
    {"mxfp8_2d", "mxfp8_e4m3", "mxfp8_e4m3", false, {NC_1X32_E8M0, NC_1X32_E8M0, NC_1X32_E8M0}},
    {"nvfp4", "nvfp4_1d", "nvfp4_1d", true, {NC_1X16_E4M3, NC_1X16_E4M3, NC_1X16_E4M3}},
    {"int8_block32", "int8_block32", "int8_block32", false, {NC_DECODED, NC_DECODED, NC_DECODED}},
};

TEST_CASE("the kinds of the formats that have products") {
  size_t able = 0;
  for (const fs::path& path : good_specs()) able += !plan_of(path.stem()).products.input.empty();
  CHECK(able == std::size(kKinds));
  for (const Kinds& row : kKinds) {
    CAPTURE(std::string(row.name));
    const ProductPlan products = plan_of(row.name).products;
    CHECK(products.input == row.input);
    CHECK(products.gradient == row.gradient);
    CHECK(products.stochastic_gradient == row.stochastic);
    for (size_t i = 0; i < NC_PRODUCT_COUNT; ++i) CHECK(products.product[i].kind == row.kind[i]);
  }
}

// A spec of this tree with other formats for its products.
ProductPlan with_products(const std::string& name, const std::string& input,
                          const std::string& gradient) {
  for (const fs::path& path : good_specs()) {
    if (path.stem() != name) continue;
    std::string text = text_of(path);
    text.resize(std::min(text.find("[matmul]"), text.size()));
    text.append("\n[matmul]\ninput = \"").append(input);
    text.append("\"\ngradient = \"").append(gradient).append("\"\n");
    return plan_of(Source{path.string(), text}).products;
  }
  FAIL("no spec of ", name);
  return {};
}

TEST_CASE("operands that no unit takes together") {
  const auto kinds = [](const ProductPlan& products) {
    std::vector<nc_product_kind> found;
    for (const Product& product : products.product) found.push_back(product.kind);
    return found;
  };
  using Found = std::vector<nc_product_kind>;
  // e5m2 by e5m2; and it may stand on either side of e4m3.
  CHECK(kinds(with_products("fp8_e5m2", "fp8_e4m3", "fp8_e5m2")) ==
        Found{NC_TENSOR_BY_TENSOR, NC_DECODED, NC_TENSOR_BY_TENSOR});
  // Other elements, other blocks, other scales.
  CHECK(kinds(with_products("fp8_e4m3", "fp8_block1x128", "fp8_e5m2")) ==
        Found{NC_DECODED, NC_TENSOR_BY_TENSOR, NC_DECODED});
  CHECK(kinds(with_products("fp8_block1x128", "self", "self")) ==
        Found{NC_1X128_BY_1X128, NC_1X128_BY_1X128, NC_1X128_BY_1X128});
  CHECK(kinds(with_products("fp8_block128", "self", "self")) ==
        Found{NC_DECODED, NC_DECODED, NC_DECODED});
  // A weight's gradient in groups alone, where the input is in groups both ways.
  CHECK(kinds(with_products("fp8_block128", "fp8_block1x128", "fp8_block1x128")) ==
        Found{NC_1X128_BY_128X128, NC_1X128_BY_128X128, NC_1X128_BY_1X128});
  CHECK(kinds(with_products("mxfp4", "self", "self")) == Found{NC_DECODED, NC_DECODED, NC_DECODED});
  CHECK(kinds(with_products("nvfp4", "mxfp8_e4m3", "nvfp4_1d")) ==
        Found{NC_DECODED, NC_1X16_E4M3, NC_DECODED});
}

TEST_CASE("scales in another padding than a unit reads") {
  for (const auto& [name, pad, other] :
       {std::tuple{"fp8_block128", "[1, 4]", "[128, 4]"}, {"mxfp8_e4m3", "[128, 4]", "[1, 4]"}}) {
    std::string text = text_of(kSource / "spec" / (std::string(name) + ".toml"));
    text.replace(text.find(pad), std::strlen(pad), other);
    const ProductPlan products = plan_of(Source{std::string(name) + ".toml", text}).products;
    CHECK(products.product[NC_PRODUCT_FORWARD].kind == NC_DECODED);
    CHECK(products.product[NC_PRODUCT_WEIGHT_GRADIENT].kind != NC_DECODED);
  }
}

// The forward's kind, of a spec of this tree with some of its text replaced.
nc_product_kind forward_of(const std::string& name, const std::string& old,
                           const std::string& text) {
  std::string spec = text_of(kSource / "spec" / (name + ".toml"));
  const size_t at = spec.find(old);
  REQUIRE(at != std::string::npos);
  spec.replace(at, old.size(), text);
  return plan_of(Source{name + ".toml", spec}).products.product[NC_PRODUCT_FORWARD].kind;
}

TEST_CASE("scales that are stored more than once, and codes that are not packed") {
  // As written they have a unit.
  CHECK(forward_of("fp8_block128", "[rowwise]", "[rowwise]") == NC_1X128_BY_128X128);
  CHECK(forward_of("nvfp4", "\n[rowwise]", "\n[rowwise]") == NC_1X16_E4M3);
  CHECK(forward_of("fp8_block128", "[rowwise]", "[rowwise]\nscale_per = [1, 128]") == NC_DECODED);
  CHECK(forward_of("nvfp4", "\n[rowwise]", "\nelement.packing = \"byte\"\n[rowwise]") ==
        NC_DECODED);
}

TEST_CASE("decoded values in significant bits") {
  const std::pair<const char*, int> rows[] = {{"fp8_e4m3", 4},      {"fp8_e5m2", 3},
                                              {"fp8_block128", 4},  {"mxfp8_e4m3", 4},
                                              {"mxfp6_e2m3", 4},    {"mxfp4", 2},
                                              {"nvfp4", 6},         {"mxint8", 7},
                                              {"int8_block32", 31}, {"fp8_block128_f32", 28}};
  for (const auto& row : rows) {
    const std::string name = row.first;
    CAPTURE(name);
    CHECK(plan_of(name).significant_bits == row.second);
    CHECK(plan_of(name).tensor_range == (std::string(name) == "nvfp4" ? 2688.0f : 0.0f));
  }
}

std::string spec_path(const std::string& name) {
  return (kSource / "spec" / (name + ".toml")).string();
}

TEST_CASE("names are those of the specs given, and of the folder that may be named") {
  const fs::path folder = fs::temp_directory_path() / "narrowcast_test_products";
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::string text = text_of(kSource / "spec" / "fp8_block128.toml");
  text.replace(text.find("fp8_block128"), 12, "mine");
  const fs::path mine = folder / "mine.toml";
  std::ofstream(mine) << text;
  std::ostringstream errors;
  CHECK_FALSE(load_plans({mine.string()}, "", errors));
  CHECK(errors.str().find("names no format: \"fp8_block1x128\"") != std::string::npos);
  CHECK(load_plans({mine.string()}, (kSource / "spec").string(), errors));
  const auto both =
      load_plans({mine.string(), spec_path("fp8_block1x128"), spec_path("fp8_block1x128_128x128")},
                 "", errors);
  REQUIRE(both);
  CHECK(both->back().products.product[0].kind == NC_1X128_BY_128X128);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace narrowcast::codegen::test
