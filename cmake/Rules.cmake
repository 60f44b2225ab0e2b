# Writes <folder>/<file>.hpp, which includes some headers and names a type <type>: the template <list> of <prefix>NAME::<member>, one for each
# header NAME.hpp.
function(narrowcast_list_headers folder file type list prefix member)
  set(includes "")
  set(names "")
  foreach(header IN LISTS ARGN)
    cmake_path(GET header STEM name)
    string(APPEND includes "#include \"${header}\"\n")
    list(APPEND names ${prefix}${name}::${member})
  endforeach()
  list(JOIN names ", " names)
  file(CONFIGURE OUTPUT ${folder}/${file}.hpp @ONLY CONTENT [[
#pragma once

@includes@
namespace narrowcast::inline NC_VARIANT {
using @type@ = @list@<@names@>;
}
]])
endfunction()

# What every library of kernels has: all optimizers' rules, those that NARROWCAST_RULES names too, and all state formats, which come with the
# sources of the runtime, wherever the formats that are built lie.
set(rules_folder ${PROJECT_BINARY_DIR}/rules)
file(GLOB rule_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/rules/*.hpp)
file(GLOB state_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/generated/states/*.hpp)
narrowcast_list_headers(${rules_folder} rules Rules RuleList "" Rule ${rule_headers} ${NARROWCAST_RULES})
narrowcast_list_headers(${rules_folder} states States StateList state_ State ${state_headers})
