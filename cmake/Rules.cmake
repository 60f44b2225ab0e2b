# Writes <folder>/<file>.hpp, which includes some headers and names a type <type>: the template <list> of <prefix>NAME::<member>, one for each
# header NAME.hpp, whose kName is NAME.
function(narrowcast_list_headers folder file type list prefix member)
  set(includes "")
  set(names "")
  set(checks "")
  foreach(header IN LISTS ARGN)
    cmake_path(GET header STEM name)
    string(APPEND includes "#include \"${header}\"\n")
    list(APPEND names ${prefix}${name}::${member})
    string(APPEND checks "static_assert(std::string_view(${prefix}${name}::${member}::kName) == \"${name}\", \"kName is the name of the file, ${name}\");\n")
  endforeach()
  list(JOIN names ", " names)
  file(CONFIGURE OUTPUT ${folder}/${file}.hpp @ONLY CONTENT [[
#pragma once

#include <string_view>

@includes@
namespace narrowcast::inline NC_VARIANT {
@checks@using @type@ = @list@<@names@>;
}
]])
endfunction()

# What every library of kernels has: all optimizers' rules, or NARROWCAST_RULE alone, and all state formats, which come with the sources of
# the runtime, wherever the formats that are built lie.
set(rules_folder ${PROJECT_BINARY_DIR}/rules)
file(GLOB rule_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/rules/*.hpp)
file(GLOB state_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/generated/states/*.hpp)
set(rule_prefix "") # of a plugin's file
if(NARROWCAST_RULE)
  set(rule_headers ${NARROWCAST_RULE})
  cmake_path(GET NARROWCAST_RULE STEM rule_name)
  set(rule_prefix ${rule_name}.)
endif()
narrowcast_list_headers(${rules_folder} rules Rules RuleList "" Rule ${rule_headers})
narrowcast_list_headers(${rules_folder} states States StateList state_ State ${state_headers})
