// The specs that tests read, and what the generator makes of them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "codegen/derive.hpp"
#include "codegen/products.hpp"
#include "codegen/read.hpp"
#include "codegen/validate.hpp"

namespace narrowcast::codegen::test {

namespace fs = std::filesystem;

inline const fs::path kSource = NARROWCAST_SOURCE_DIR;

inline std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<fs::path> files(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == extension) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline std::vector<fs::path> good_specs() { return files(kSource / "spec", ".toml"); }
inline std::vector<fs::path> state_specs() { return files(kSource / "spec/states", ".toml"); }

// The plan of a spec that has no errors, without its products.
inline Plan plan_alone(const Source& source) {
  Diagnostics diagnostics(source);
  const Format format = read(source, diagnostics);
  validate(format, diagnostics);
  REQUIRE_MESSAGE(diagnostics.empty(), diagnostics.text());
  return derive(format);
}

// What products may name.
inline const Plans& good_plans() {
  static const Plans kPlans = [] {
    Plans plans;
    for (const fs::path& path : good_specs())
      plans.emplace(path.stem().string(), plan_alone({path.string(), text_of(path)}));
    return plans;
  }();
  return kPlans;
}

// All errors of a spec.
inline std::string messages(const Source& source) {
  Diagnostics diagnostics(source);
  const Format format = read(source, diagnostics);
  validate(format, diagnostics);
  if (diagnostics.empty()) products_of(format, derive(format), good_plans(), diagnostics);
  return diagnostics.text();
}

// The plan of a spec that has no errors.
inline Plan plan_of(const Source& source) {
  Plan plan = plan_alone(source);
  Diagnostics diagnostics(source);
  plan.products = products_of(read(source, diagnostics), plan, good_plans(), diagnostics);
  REQUIRE_MESSAGE(diagnostics.empty(), diagnostics.text());
  return plan;
}

inline Plan plan_of(const std::string& name) {
  for (const fs::path& path : good_specs()) {
    if (path.stem() == name) return plan_of(Source{path.string(), text_of(path)});
  }
  FAIL("no spec of ", name);
  return {};
}

}  // namespace narrowcast::codegen::test
