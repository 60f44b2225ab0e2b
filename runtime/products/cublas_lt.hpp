// cuBLASLt, called by its names in the library that the process has loaded, as it has where torch
// uses a GPU: linked to, it would have to be found where only the CPU is used, too.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>
#include <utility>

namespace narrowcast::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmul) multiply;
  decltype(&cublasLtMatmulAlgoGetHeuristic) search;
  decltype(&cublasLtMatmulDescInit_internal) begin_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutInit_internal) begin_layout;
  decltype(&cublasLtMatmulPreferenceInit_internal) begin_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtGetStatusString) text_of;
};

template <class Function>
bool find_function(void* file, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(file, name));
  return function != nullptr;
}

// NULL where none of the major version that this was compiled for has been loaded.
inline const CublasLt* cublas_lt() {
  static const auto [found, is_whole] = [] {
    CublasLt at{};
    const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* const loaded = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    const bool whole =
        loaded != nullptr && find_function(loaded, at.create, "cublasLtCreate") &&
        find_function(loaded, at.multiply, "cublasLtMatmul") &&
        find_function(loaded, at.search, "cublasLtMatmulAlgoGetHeuristic") &&
        find_function(loaded, at.begin_operation, "cublasLtMatmulDescInit_internal") &&
        find_function(loaded, at.set_operation, "cublasLtMatmulDescSetAttribute") &&
        find_function(loaded, at.begin_layout, "cublasLtMatrixLayoutInit_internal") &&
        find_function(loaded, at.begin_preference, "cublasLtMatmulPreferenceInit_internal") &&
        find_function(loaded, at.set_preference, "cublasLtMatmulPreferenceSetAttribute") &&
        find_function(loaded, at.text_of, "cublasLtGetStatusString");
    return std::pair(at, whole);
  }();
  return is_whole ? &found : nullptr;
}

}  // namespace narrowcast::cuda
