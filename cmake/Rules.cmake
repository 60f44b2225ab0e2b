# rules.hpp: the list of all optimizers' rules, NAME::Rule of each header runtime/rules/NAME.hpp, and of those that NARROWCAST_RULES names.
file(GLOB rule_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/rules/*.hpp)
list(SORT rule_headers)
list(APPEND rule_headers ${NARROWCAST_RULES})
set(rule_includes "")
set(rule_list "")
foreach(header IN LISTS rule_headers)
  cmake_path(GET header STEM rule)
  string(APPEND rule_includes "#include \"${header}\"\n")
  list(APPEND rule_list ${rule}::Rule)
endforeach()
list(JOIN rule_list ", " rule_list)
set(rules_folder ${PROJECT_BINARY_DIR}/rules)
file(CONFIGURE OUTPUT ${rules_folder}/rules.hpp @ONLY CONTENT [[
#pragma once

@rule_includes@
namespace narrowcast::inline NC_VARIANT {
using Rules = RuleList<@rule_list@>;
}
]])
