// Device memory for tests and benchmarks.
#pragma once

#include <cuda_runtime_api.h>

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

template <class Type>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    if (count > 0)
      check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(Type)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<Type>& host) : DeviceArray(host.size()) { upload(host); }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), count_(other.count_) {
    other.data_ = nullptr;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

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

}  // namespace narrowcast::test
