# Kernels are compiled once for each instruction set of the CPU, and for the GPU where nvcc is. NC_VARIANT names the inline namespace of
# each; NC_WITH_AVX and NC_WITH_CUDA tell the code that chooses among them which there are.

# Adds to `library` the kernels of `cpu_source` and `cuda_source`, compiled with the options of the interface library `options`; their
# object libraries are called <name>-kernels-<variant>.
function(narrowcast_add_variants library name cpu_source cuda_source options)
  narrowcast_add_variant(${library} ${name} baseline ${cpu_source} ${options})
  if(NARROWCAST_WITH_AVX)
    narrowcast_add_variant(${library} ${name} avx2 ${cpu_source} ${options} -march=x86-64-v3)
    narrowcast_add_variant(${library} ${name} avx512 ${cpu_source} ${options} -march=x86-64-v4 -mprefer-vector-width=512)
    target_compile_definitions(${library} PRIVATE NC_WITH_AVX)
  endif()
  if(NARROWCAST_WITH_CUDA)
    narrowcast_add_variant(${library} ${name} cuda ${cuda_source} ${options})
    target_compile_definitions(${library} PRIVATE NC_WITH_CUDA)
    target_link_libraries(${library} PRIVATE CUDA::cudart)
  endif()
endfunction()

function(narrowcast_add_variant library name variant source options)
  set(objects ${name}-kernels-${variant})
  add_library(${objects} OBJECT ${source})
  target_link_libraries(${objects} PRIVATE ${options})
  target_compile_definitions(${objects} PRIVATE NC_VARIANT=${variant})
  # Every function of a kernel is inlined, so no vector crosses a call whose convention could differ.
  target_compile_options(${objects} PRIVATE ${ARGN} $<$<COMPILE_LANGUAGE:CXX>:-Wno-psabi>)
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()
