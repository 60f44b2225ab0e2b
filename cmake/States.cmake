# states.hpp: the list of all state formats, state_NAME::State of each header generated/states/NAME.hpp. They come with the sources of the
# runtime, wherever the formats that are built lie.
file(GLOB state_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/generated/states/*.hpp)
list(SORT state_headers)
set(state_includes "")
set(state_list "")
foreach(header IN LISTS state_headers)
  cmake_path(GET header STEM state)
  string(APPEND state_includes "#include \"${header}\"\n")
  list(APPEND state_list state_${state}::State)
endforeach()
list(JOIN state_list ", " state_list)
file(CONFIGURE OUTPUT ${rules_folder}/states.hpp @ONLY CONTENT [[
#pragma once

@state_includes@
namespace narrowcast::inline NC_VARIANT {
using States = StateList<@state_list@>;
}
]])
