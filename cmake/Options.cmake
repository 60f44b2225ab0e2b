# What every target shares: the language, the warnings, and the arithmetic that the law of equal bits rests on.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(NARROWCAST_OPTIMIZE "-O3" CACHE STRING "How a release is optimized; less is compiled sooner, and computes the same bits")
set(CMAKE_CXX_FLAGS_RELEASE "${NARROWCAST_OPTIMIZE} -DNDEBUG")

include(CheckLanguage)
if(NARROWCAST_CUDA STREQUAL "AUTO")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(NARROWCAST_WITH_CUDA ON)
  else()
    set(NARROWCAST_WITH_CUDA OFF)
    find_program(NARROWCAST_NVCC nvcc)
    if(NARROWCAST_NVCC)
      message(WARNING "${NARROWCAST_NVCC} cannot compile, so there will be no GPU kernels: -DNARROWCAST_CUDA=ON shows why, and =OFF leaves this warning out")
    endif()
  endif()
else()
  set(NARROWCAST_WITH_CUDA ${NARROWCAST_CUDA})
endif()
if(NARROWCAST_WITH_CUDA AND NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  include(cmake/Gpus.cmake)
endif()
if(NARROWCAST_WITH_CUDA)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # older CMakes do not know that newer nvccs have it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
endif()
set(NARROWCAST_WITH_AVX OFF)
set(cpu_variants baseline)
if(NARROWCAST_AVX AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(NARROWCAST_WITH_AVX ON)
  set(cpu_variants "baseline, avx2, avx512")
endif()
message(STATUS "narrowcast: CPU kernels for ${cpu_variants}")
if(NARROWCAST_WITH_CUDA)
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^([0-9]+[a-z]?).*" "sm_\\1" OUTPUT_VARIABLE gpus)
  list(JOIN gpus ", " gpus)
  message(STATUS "narrowcast: GPU kernels for ${gpus}")
else()
  message(STATUS "narrowcast: no GPU kernels")
endif()

set(NARROWCAST_WITH_CODEGEN ${NARROWCAST_CODEGEN})
if(NARROWCAST_CODEGEN)
  find_path(NARROWCAST_TOMLPLUSPLUS toml++/toml.h)
  if(NARROWCAST_TOMLPLUSPLUS)
    set(NARROWCAST_WITH_CODEGEN ON)
  elseif(NARROWCAST_CODEGEN STREQUAL "AUTO")
    message(STATUS "narrowcast: no generator, because toml++ was not found")
    set(NARROWCAST_WITH_CODEGEN OFF)
  else()
    message(FATAL_ERROR "The generator needs toml++ (Debian: libtomlplusplus-dev): install it, or leave the generator out with "
                        "-DNARROWCAST_CODEGEN=OFF")
  endif()
endif()

# Beside the sources, generated text is found as generated/<format>/<file>, wherever its folder lies.
cmake_path(GET NARROWCAST_GENERATED PARENT_PATH generated_root)

# IEEE arithmetic: no contraction, no fast-math. The two -fno flags change no value: they say that nobody reads errno or
# the exception flags, which lets the compiler vectorise square roots and selections.
add_library(narrowcast_options INTERFACE)
include(${CMAKE_CURRENT_LIST_DIR}/Rules.cmake)
target_include_directories(narrowcast_options INTERFACE ${generated_root} ${rules_folder} ${PROJECT_SOURCE_DIR})
target_compile_options(
  narrowcast_options
  INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall
    -Wextra
    -ffp-contract=off
    -fno-math-errno
    -fno-trapping-math>
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false
    --expt-relaxed-constexpr
    --compress-mode=size # less than a fifth of the bytes, of which a wheel has some for each architecture
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
if(NARROWCAST_WERROR)
  target_compile_options(narrowcast_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                                                      $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
endif()
if(NARROWCAST_SANITIZE)
  target_compile_options(narrowcast_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${NARROWCAST_SANITIZE} -fno-sanitize-recover=all -g -O1 -fno-omit-frame-pointer>)
  target_link_options(narrowcast_options INTERFACE -fsanitize=${NARROWCAST_SANITIZE})
endif()
