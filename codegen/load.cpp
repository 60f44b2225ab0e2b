#include "codegen/load.hpp"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>

#include "codegen/derive.hpp"
#include "codegen/products.hpp"
#include "codegen/read.hpp"
#include "codegen/validate.hpp"

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

struct Spec {
  Source source;
  Diagnostics diagnostics{source};
  Format format;
  Plan plan{};
};

// Reads a spec and derives all that follows from it alone.
void read_alone(Spec& spec) {
  spec.format = read(spec.source, spec.diagnostics);
  validate(spec.format, spec.diagnostics);
  if (spec.diagnostics.empty()) spec.plan = derive(spec.format);
}

// The plans of a folder's specs, as far as they have no errors.
Plans plans_of_folder(const std::string& folder) {
  Plans plans;
  if (folder.empty()) return plans;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".toml") continue;
    Spec spec;
    std::string reason;
    if (!load(entry.path().string(), spec.source, reason)) continue;
    read_alone(spec);
    if (spec.diagnostics.empty()) plans.emplace(spec.plan.name, spec.plan);
  }
  return plans;
}

void plan_products(std::deque<Spec>& specs, Plans known) {
  for (const Spec& spec : specs) {
    if (spec.plan.kind == Kind::kWeight) known.insert_or_assign(spec.plan.name, spec.plan);
  }
  for (Spec& spec : specs) {
    if (spec.plan.kind != Kind::kWeight) continue;
    spec.plan.products = products_of(spec.format, spec.plan, known, spec.diagnostics);
  }
}

// Both would be one folder and one plugin, of whichever came last.
void refuse_one_name_twice(std::deque<Spec>& specs) {
  std::map<std::string_view, const Source*> firsts;
  for (Spec& spec : specs) {
    const Field<std::string>& name = spec.format.name;
    if (!name.given() || !spec.diagnostics.empty()) continue;
    const auto [first, is_new] = firsts.emplace(name.value, &spec.source);
    if (is_new) continue;
    spec.diagnostics.add(
        name.at, "format " + in_quotes(name.value) + " is that of " + first->second->path + ", too",
        "give each of the two a name of its own, or leave one out");
  }
}

size_t errors_of(const std::deque<Spec>& specs) {
  size_t count = 0;
  for (const Spec& spec : specs) count += spec.diagnostics.size();
  return count;
}

}  // namespace

std::optional<std::vector<Plan>> load_plans(const std::vector<std::string>& paths,
                                            const std::string& known, std::ostream& errors) {
  std::deque<Spec> specs;  // which stay in their places: diagnostics look at sources
  size_t unread = 0;
  for (const std::string& path : paths) {
    Spec& spec = specs.emplace_back();
    std::string reason;
    if (load(path, spec.source, reason)) {
      read_alone(spec);
    } else {
      errors << path << ": error: cannot be read: " << reason << "\n";
      ++unread;
    }
  }
  refuse_one_name_twice(specs);
  // Not beside other errors: a name may be that of a spec which has them.
  if (unread + errors_of(specs) == 0) plan_products(specs, plans_of_folder(known));
  for (const Spec& spec : specs) errors << spec.diagnostics.text();
  if (const size_t count = unread + errors_of(specs); count != 0) {
    errors << count << (count == 1 ? " error" : " errors") << "\n";
    return std::nullopt;
  }
  std::vector<Plan> plans;
  plans.reserve(specs.size());
  for (Spec& spec : specs) plans.push_back(std::move(spec.plan));
  std::ranges::sort(plans, {}, &Plan::name);
  return plans;
}

}  // namespace narrowcast::codegen
