# A format's plugin: generated/<format>, as the shared library <build>/plugins/<format>.so.

include(${PROJECT_SOURCE_DIR}/cmake/Variants.cmake)
set(NARROWCAST_PLUGIN_DIR ${PROJECT_BINARY_DIR}/plugins)

# The global property NARROWCAST_FORMATS lists the targets of all formats.
function(narrowcast_add_format directory)
  get_filename_component(format ${directory} NAME)
  add_library(${format} MODULE ${directory}/plugin.cpp)
  set_target_properties(${format} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${NARROWCAST_PLUGIN_DIR})
  target_link_libraries(${format} PRIVATE narrowcast_options narrowcast_plugin)
  narrowcast_add_variants(${format} ${format} ${directory}/kernels.cpp ${directory}/kernels.cu)
  set_property(GLOBAL APPEND PROPERTY NARROWCAST_FORMATS ${format})
endfunction()
