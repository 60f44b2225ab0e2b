#include "codegen/type_names.hpp"

namespace narrowcast::codegen {
namespace {

std::string rule_name(ScaleRule rule) {
#define NC_NAME(word, Name) #Name,
  static constexpr const char* kNames[] = {NC_SCALE_RULES(NC_NAME)};
#undef NC_NAME
  return kNames[static_cast<size_t>(rule)];
}

}  // namespace

TypeNames type_names_of(const Plan& plan) {
  TypeNames names;
  names.element = type_of(plan.element, plan.scale).name;
  names.header = row_of(plan.element).header;
  names.scale = row_of(plan.scale).name;
  names.rule = rule_name(plan.rule) + "<" + names.scale + ", " + names.element + ">";
  names.decoder =
      plan.two_levels ? "TwoLevels<" + names.element + ">" : "OneLevel<" + names.scale + ">";
  return names;
}

}  // namespace narrowcast::codegen
