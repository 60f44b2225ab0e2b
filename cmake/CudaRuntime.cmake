# One CUDA runtime in a process, however many plugins it has: they link the shared one. Where torch has loaded it, its soname is known
# and no folder is searched. Elsewhere the build's programs and plugins find that of the toolkit, whose folder they keep.

set(CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})

# An installed library looks where pip puts torch's CUDA runtime, then, on the machine that compiled it, in the toolkit. `site_packages`: the
# folder that packages are installed to, as seen from the library's own.
function(narrowcast_find_cuda_runtime library site_packages)
  set(folder cuda_runtime)
  if(CUDAToolkit_VERSION_MAJOR GREATER_EQUAL 13)
    set(folder cu${CUDAToolkit_VERSION_MAJOR})
  endif()
  set_property(TARGET ${library} APPEND PROPERTY INSTALL_RPATH $ORIGIN/${site_packages}/nvidia/${folder}/lib)
  if(NOT NARROWCAST_MANYLINUX)
    set_property(TARGET ${library} APPEND PROPERTY INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
  endif()
endfunction()
