// Products by cuBLASLt, if the toolkit that this is compiled with has it and knows the kinds.
#include "runtime/products/unit.hpp"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

#if defined(CUBLAS_VERSION) && CUBLAS_VERSION >= 120900
#include <cuda_runtime_api.h>

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>
#include <optional>

#include "runtime/plugin/facts.h"
#include "runtime/plugin/launch.h"
#include "runtime/products/cublas_lt.hpp"

namespace narrowcast::cuda {
namespace {

// ---- one product, as cuBLASLt is told of it ----

// It counts by columns, so the result's transpose is asked for: b @ a.T.
struct Call {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t left, right, result;
};

bool is_done(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

template <class Value>
bool set(const CublasLt& lt, Call& call, cublasLtMatmulDescAttributes_t attribute, Value value) {
  return is_done(lt.set_operation(&call.operation, attribute, &value, sizeof value));
}

int32_t scale_mode(int32_t kind, bool squares) {
  if (kind == NC_TENSOR_BY_TENSOR) return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  return squares ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                 : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
}

cudaDataType type_of(const UnitFactor& factor) {
  return factor.is_e5m2 != 0 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

cudaDataType type_of(int32_t dtype) {
  return dtype == NC_BF16 ? CUDA_R_16BF : dtype == NC_F16 ? CUDA_R_16F : CUDA_R_32F;
}

bool describe(const CublasLt& lt, const UnitProduct& product, Call& call) {
  const UnitFactor &a = product.a, &b = product.b;
  const int64_t summed = product.summed;
  const int32_t kind = product.kind;
  const auto begin = [&](cublasLtMatrixLayoutOpaque_t& layout, cudaDataType type, int64_t rows,
                         int64_t columns) {
    return is_done(lt.begin_layout(&layout, sizeof layout, type, rows, columns, rows));
  };
  return is_done(lt.begin_operation(&call.operation, sizeof call.operation, CUBLAS_COMPUTE_32F,
                                    CUDA_R_32F)) &&
         set(lt, call, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T) &&
         set(lt, call, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(product.fast)) &&
         set(lt, call, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
             scale_mode(kind, kind == NC_1X128_BY_128X128)) &&
         set(lt, call, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(kind, false)) &&
         set(lt, call, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b.scales) &&
         set(lt, call, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a.scales) &&
         begin(call.left, type_of(b), summed, b.kept) &&
         begin(call.right, type_of(a), summed, a.kept) &&
         begin(call.result, type_of(product.dtype), b.kept, a.kept);
}

// ---- algorithms that have been found ----

constexpr size_t kWorkspace = 1 << 20;  // bytes that an algorithm may ask for, as torch has it
constexpr size_t kShapes = 4096;        // that are kept: batches may differ in size for ever
constexpr uint32_t kAligned = 256;      // bytes; algorithms ask for no more

uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, kAligned));
}

struct Shape {
  int device;
  int64_t rows, columns, summed;
  int32_t kind, fast, dtype, a_is_e5m2, b_is_e5m2;
  uint32_t a_alignment, b_alignment, result_alignment;
  auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
};

// None where the library has none, or says that it cannot be asked.
std::optional<Algorithm> search(const CublasLt& lt, cublasLtHandle_t handle, Call& call,
                                const Shape& shape) {
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
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return std::nullopt;
  return Algorithm{result.algo, result.workspaceSize};
}

// While there is one, the calling thread may do what a capture of its stream forbids elsewhere:
// a library's first call loads and allocates, and none of it belongs into a graph.
class OutsideCaptures {
 public:
  OutsideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The handles of devices and the algorithms of shapes, or that there is none, under one lock.
struct Found {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Shape, std::optional<Algorithm>> algorithms;
};

std::optional<Algorithm> find_algorithm(const CublasLt& lt, const UnitProduct& product, Call& call,
                                        cublasLtHandle_t& handle) {
  // Not destroyed with the process: CUDA may be gone by then.
  static Found& found = *new Found;  // NOLINT(*-owning-memory)
  Shape shape{.device = 0,
              .rows = product.a.kept,
              .columns = product.b.kept,
              .summed = product.summed,
              .kind = product.kind,
              .fast = product.fast,
              .dtype = product.dtype,
              .a_is_e5m2 = product.a.is_e5m2,
              .b_is_e5m2 = product.b.is_e5m2,
              .a_alignment = alignment(product.a.codes),
              .b_alignment = alignment(product.b.codes),
              .result_alignment = alignment(product.result)};
  cudaGetDevice(&shape.device);
  cudaSetDevice(shape.device);  // a thread's first call of CUDA may be this one
  const std::scoped_lock lock(found.mutex);
  cublasLtHandle_t& kept = found.handles[shape.device];
  if (kept == nullptr) {
    const OutsideCaptures outside;
    if (lt.create(&kept) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  }
  handle = kept;
  const auto known = found.algorithms.find(shape);
  if (known != found.algorithms.end()) return known->second;
  if (found.algorithms.size() == kShapes) found.algorithms.clear();
  const OutsideCaptures outside;
  return found.algorithms.emplace(shape, search(lt, handle, call, shape)).first->second;
}

const char* multiply(const UnitProduct* product) {
  const CublasLt& lt = *cublas_lt();
  Call call;
  cublasLtHandle_t handle = nullptr;
  std::optional<Algorithm> found;
  if (describe(lt, *product, call)) found = find_algorithm(lt, *product, call, handle);
  *product->has_algorithm = found.has_value();
  if (!found) return nullptr;
  void* const workspace =
      found->workspace == 0 ? nullptr : product->workspace(product->owner, found->workspace);
  const float one = 1, zero = 0;
  const auto status = lt.multiply(
      handle, &call.operation, &one, product->b.codes, &call.left, product->a.codes, &call.right,
      &zero, product->result, &call.result, product->result, &call.result, &found->algorithm,
      workspace, found->workspace, static_cast<cudaStream_t>(product->stream));
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : lt.text_of(status);
}

}  // namespace

UnitFunction unit_product() { return cublas_lt() == nullptr ? nullptr : &multiply; }

}  // namespace narrowcast::cuda

#else

namespace narrowcast::cuda {
UnitFunction unit_product() { return nullptr; }
}  // namespace narrowcast::cuda

#endif
