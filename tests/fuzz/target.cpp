#include "target.hpp"

#include "codegen/derive.hpp"
#include "codegen/emit/emit.hpp"
#include "codegen/golden.hpp"
#include "codegen/read.hpp"
#include "codegen/validate.hpp"

namespace narrowcast::fuzz {
namespace {

using codegen::Diagnostics;
using codegen::Format;
using codegen::Plan;
using codegen::Source;

// Two plans of equal facts have equal golden bytes.
std::string facts_of(Plan plan) {
  plan.name = plan.name_space = plan.summary = plan.reference = plan.origin = "";
  plan.products = {};
  return codegen::emit_format(plan) + codegen::emit_cast(plan);
}

}  // namespace

size_t Target::run(const std::string& text) {
  Source source{"spec.toml", text};
  Diagnostics diagnostics(source);
  const Format format = codegen::read(source, diagnostics);
  // So that most formats stand in a file of their name; a path has an end.
  if (format.name.given() && format.name.value.size() < 100)
    source.path = format.name.value + ".toml";
  codegen::validate(format, diagnostics);
  if (!diagnostics.empty()) return diagnostics.text().size();
  Plan plan = codegen::derive(format);
  if (plan.kind == codegen::Kind::kState) {
    ++good_;
    return codegen::emit_state(plan).size() + codegen::emit_state_page(plan).size();
  }
  plan.products = codegen::products_of(format, plan, known_, diagnostics);
  if (!diagnostics.empty()) return diagnostics.text().size();
  ++good_;
  return emit(plan);
}

size_t Target::emit(const Plan& plan) {
  size_t bytes = codegen::emit_format(plan).size() + codegen::emit_cast(plan).size() +
                 codegen::emit_gather(plan).size();
  if (!emitted_.insert(facts_of(plan)).second) return bytes;
  return bytes + codegen::emit_test(plan).size() + codegen::emit_facts(plan).size() +
         codegen::golden_text(plan).size();
}

}  // namespace narrowcast::fuzz
