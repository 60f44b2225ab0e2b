// Products by cuBLASLt.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <mutex>
#include <tuple>

#include "runtime/plugin/facts.h"
#include "runtime/plugin/launch.h"
#include "runtime/products/cublas_lt.hpp"
#include "runtime/products/unit.hpp"

namespace narrowcast::cuda {
namespace {

// ---- one product, as cuBLASLt is told of it ----

// It counts by columns, so the result's transpose is asked for: b @ a.T.
struct Call {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t left, right, result;
};

cublasStatus_t set_scale(const CublasLt& lt, Call& call, cublasLtMatmulDescAttributes_t mode,
                         cublasLtMatmulDescAttributes_t pointer, int32_t kind,
                         const UnitFactor& factor, bool squares) {
  const int32_t value = kind == NC_TENSOR_BY_TENSOR ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
                        : squares                   ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                    : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const auto status = lt.set_operation(&call.operation, mode, &value, sizeof value);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return lt.set_operation(&call.operation, pointer, &factor.scales, sizeof factor.scales);
}

cudaDataType type_of(const UnitFactor& factor) {
  return factor.is_e5m2 != 0 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

cudaDataType type_of(int32_t dtype) {
  return dtype == NC_BF16 ? CUDA_R_16BF : dtype == NC_F16 ? CUDA_R_16F : CUDA_R_32F;
}

cublasStatus_t describe(const CublasLt& lt, const UnitProduct& product, Call& call) {
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const int8_t fast = product.fast != 0 ? 1 : 0;
  const auto [a, b, summed, kind] = std::tie(product.a, product.b, product.summed, product.kind);
  const std::array steps{
      lt.begin_operation(&call.operation, sizeof call.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
      lt.set_operation(&call.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                       sizeof transposed),
      lt.set_operation(&call.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast),
      set_scale(lt, call, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                kind, b, kind == NC_1X128_BY_128X128),
      set_scale(lt, call, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                kind, a, /*squares=*/false),
      lt.begin_layout(&call.left, sizeof call.left, type_of(b), summed, b.kept, summed),
      lt.begin_layout(&call.right, sizeof call.right, type_of(a), summed, a.kept, summed),
      lt.begin_layout(&call.result, sizeof call.result, type_of(product.dtype), b.kept, a.kept,
                      b.kept),
  };
  const auto failed = std::ranges::find_if(
      steps, [](cublasStatus_t status) { return status != CUBLAS_STATUS_SUCCESS; });
  return failed == steps.end() ? CUBLAS_STATUS_SUCCESS : *failed;
}

// ---- algorithms that have been found ----

constexpr size_t kWorkspace = 32 << 20;  // that an algorithm may ask for: torch's own limit
constexpr size_t kShapes = 4096;         // that are kept: batches may differ in size for ever
constexpr uint32_t kAligned = 256;       // bytes; algorithms ask for no more

uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, kAligned));
}

struct Shape {
  int device;
  int64_t rows, columns, summed;
  int32_t kind, fast, dtype, a_type, b_type;
  uint32_t a_alignment, b_alignment, result_alignment;
  auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
};

cublasStatus_t search(const CublasLt& lt, cublasLtHandle_t handle, Call& call, const Shape& shape,
                      Algorithm& found) {
  cublasLtMatmulPreferenceOpaque_t preference;
  lt.begin_preference(&preference, sizeof preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    lt.set_preference(&preference, attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.result_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.result_alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const auto status = lt.search(handle, &call.operation, &call.left, &call.right, &call.result,
                                &call.result, &preference, 1, &result, &count);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (count == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  found = {result.algo, result.workspaceSize};
  return CUBLAS_STATUS_SUCCESS;
}

// The handle of a device and the algorithms of shapes, under one lock.
struct Found {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Shape, Algorithm> algorithms;
};

cublasStatus_t find_algorithm(const CublasLt& lt, const UnitProduct& product, Call& call,
                              cublasLtHandle_t& handle, Algorithm& algorithm) {
  // Not destroyed with the process: CUDA may be gone by then.
  static Found& found = *new Found;  // NOLINT(*-owning-memory)
  Shape shape{.device = 0,
              .rows = product.a.kept,
              .columns = product.b.kept,
              .summed = product.summed,
              .kind = product.kind,
              .fast = product.fast,
              .dtype = product.dtype,
              .a_type = product.a.is_e5m2,
              .b_type = product.b.is_e5m2,
              .a_alignment = alignment(product.a.codes),
              .b_alignment = alignment(product.b.codes),
              .result_alignment = alignment(product.result)};
  cudaGetDevice(&shape.device);
  const std::scoped_lock lock(found.mutex);
  if (found.handles[shape.device] == nullptr) {
    const auto status = lt.create(&found.handles[shape.device]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  handle = found.handles[shape.device];
  const auto known = found.algorithms.find(shape);
  if (known != found.algorithms.end()) {
    algorithm = known->second;
    return CUBLAS_STATUS_SUCCESS;
  }
  const auto status = search(lt, handle, call, shape, algorithm);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (found.algorithms.size() == kShapes) found.algorithms.clear();
  found.algorithms.emplace(shape, algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

const char* multiply(const UnitProduct* product) {
  const CublasLt& lt = *cublas_lt();
  Call call;
  cublasLtHandle_t handle = nullptr;
  Algorithm algorithm;
  auto status = describe(lt, *product, call);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = find_algorithm(lt, *product, call, handle, algorithm);
  *product->has_algorithm = status != CUBLAS_STATUS_NOT_SUPPORTED;
  if (!*product->has_algorithm) return nullptr;
  if (status != CUBLAS_STATUS_SUCCESS) return lt.text_of(status);
  void* const workspace =
      algorithm.workspace == 0 ? nullptr : product->workspace(product->owner, algorithm.workspace);
  const float one = 1, zero = 0;
  status = lt.multiply(handle, &call.operation, &one, product->b.codes, &call.left,
                       product->a.codes, &call.right, &zero, product->result, &call.result,
                       product->result, &call.result, &algorithm.algorithm, workspace,
                       algorithm.workspace, static_cast<cudaStream_t>(product->stream));
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : lt.text_of(status);
}

}  // namespace

UnitFunction unit_product() { return cublas_lt() == nullptr ? nullptr : &multiply; }

}  // namespace narrowcast::cuda
