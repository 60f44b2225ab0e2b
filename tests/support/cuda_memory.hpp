// Device memory for tests and benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace narrowcast::test {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Memory of the default stream's order, from a pool that gives nothing back: tests allocate often,
// and cudaFree would wait for the device.
inline void* allocate(size_t bytes) {
  static const cudaMemPool_t kPool = [] {
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX;
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "memory pool");
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "memory pool");
    return pool;
  }();
  void* data = nullptr;
  check(cudaMallocFromPoolAsync(&data, bytes, kPool, nullptr), "cudaMallocFromPoolAsync");
  return data;
}

template <class Type>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    if (count > 0) data_ = static_cast<Type*>(allocate(count * sizeof(Type)));
  }
  explicit DeviceArray(const std::vector<Type>& host) : DeviceArray(host.size()) { upload(host); }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), count_(other.count_) {
    other.data_ = nullptr;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (data_ != nullptr) cudaFreeAsync(data_, nullptr);
  }

  Type* get() const { return data_; }
  size_t size() const { return count_; }
  void upload(const std::vector<Type>& host) {
    check(cudaMemcpy(data_, host.data(), count_ * sizeof(Type), cudaMemcpyHostToDevice),
          "copy to the device");
  }
  std::vector<Type> download() const {
    std::vector<Type> host(count_);
    check(cudaMemcpy(host.data(), data_, count_ * sizeof(Type), cudaMemcpyDeviceToHost),
          "copy from the device");
    return host;
  }

 private:
  Type* data_ = nullptr;
  size_t count_;
};

// `count` numbers: those of a pool, again and again.
template <class Type>
DeviceArray<Type> repeated(const std::vector<Type>& pool, size_t count) {
  DeviceArray<Type> array(count);
  for (size_t first = 0; first < count; first += pool.size()) {
    const size_t bytes = std::min(pool.size(), count - first) * sizeof(Type);
    check(cudaMemcpy(array.get() + first, pool.data(), bytes, cudaMemcpyHostToDevice), "fill");
  }
  return array;
}

}  // namespace narrowcast::test
