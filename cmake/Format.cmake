# A format's plugin, and the test of its golden bytes: from the generated folder to <NARROWCAST_PLUGIN_DIR>/<format>.so and the program
# golden_<format>.

include(${PROJECT_SOURCE_DIR}/cmake/Variants.cmake)

# Has a trailer written behind the linked plugin, with a checksum of the file (runtime/plugin/trailer.hpp). From there on the file may not be
# changed, so where it will be installed, the paths that it searches are those of the installation from the start.
function(narrowcast_add_trailer plugin)
  if(NARROWCAST_BINDINGS OR NARROWCAST_MANYLINUX)
    set_target_properties(${plugin} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  endif()
  set_property(TARGET ${plugin} APPEND PROPERTY LINK_DEPENDS $<TARGET_FILE:narrowcast_trailer>)
  add_custom_command(TARGET ${plugin} POST_BUILD COMMAND narrowcast_trailer $<TARGET_FILE:${plugin}> VERBATIM)
endfunction()

# Adds a plugin, <NARROWCAST_PLUGIN_DIR>/<file>.so, from the source of its table and those of its machines.
function(narrowcast_add_plugin plugin file options source cpu_source cuda_source)
  add_library(${plugin} MODULE ${source} ${ARGN})
  set_target_properties(${plugin} PROPERTIES PREFIX "" OUTPUT_NAME ${file} LIBRARY_OUTPUT_DIRECTORY ${NARROWCAST_PLUGIN_DIR})
  target_link_libraries(${plugin} PRIVATE ${options} narrowcast_plugin)
  narrowcast_add_variants(${plugin} ${plugin} ${cpu_source} ${cuda_source} ${options})
  if(NARROWCAST_WITH_CUDA)
    narrowcast_find_cuda_runtime(${plugin} ../..)
  endif()
  narrowcast_add_trailer(${plugin})
endfunction()

# The global property NARROWCAST_FORMATS lists the targets of all formats: format_<format>, which is also the namespace of its generated C++,
# so that no name meets another. What belongs to a target has a hyphen, for a format may be named x_options.
# The sources are those of runtime/plugin for every format; which one they are compiled for, the namespace and the folder of headers say.
function(narrowcast_add_format directory)
  get_filename_component(format ${directory} NAME)
  set(plugin format_${format})
  add_library(${plugin}-options INTERFACE)
  target_link_libraries(${plugin}-options INTERFACE narrowcast_options)
  target_include_directories(${plugin}-options INTERFACE ${directory})
  target_compile_definitions(${plugin}-options INTERFACE NC_FORMAT=${plugin})

  set(sources ${PROJECT_SOURCE_DIR}/runtime/plugin)
  narrowcast_add_plugin(${plugin} ${rule_prefix}${format} ${plugin}-options ${sources}/plugin.cpp ${sources}/cpu_machine.cpp
                        ${sources}/cuda_machine.cu)
  set_property(GLOBAL APPEND PROPERTY NARROWCAST_FORMATS ${plugin})

  add_executable(golden_${format} EXCLUDE_FROM_ALL ${directory}/test.cpp)
  target_link_libraries(golden_${format} PRIVATE narrowcast_options narrowcast_loader)
  if(NARROWCAST_TESTS)
    set_target_properties(golden_${format} PROPERTIES EXCLUDE_FROM_ALL OFF)
    add_test(NAME golden_${format} COMMAND golden_${format} $<TARGET_FILE:${plugin}>)
  endif()
endfunction()
