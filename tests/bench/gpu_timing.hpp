// What the GPU's benchmarks measure with: work on a stream, timed by events, and the bandwidth of a
// copy to hold it against.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <vector>

#include "tests/support/cuda_memory.hpp"

namespace narrowcast::test {

inline constexpr int kRepeats = 30;

using Work = std::function<const char*(cudaStream_t)>;

inline void must(const char* fault) {
  if (fault != nullptr) throw std::runtime_error(fault);
}

// Milliseconds: the median, and the spread between the 10th and the 90th percentile.
struct Time {
  double median, low, high;
};

// How long a stream waits before work that is measured. Its launches have come by then: what they
// cost the host, which most often runs ahead, is host_time.py's to tell.
inline constexpr std::chrono::microseconds kHeadStart{100};

inline void give_head_start(cudaStream_t stream) {
  const auto wait = [](void*) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < kHeadStart) {
    }
  };
  check(cudaLaunchHostFunc(stream, wait, nullptr), "wait");
}

inline Time measure(cudaStream_t stream, const Work& work) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  for (int i = 0; i < 3; ++i) must(work(stream));
  std::vector<float> times;
  for (int i = 0; i < kRepeats; ++i) {
    give_head_start(stream);
    check(cudaEventRecord(begin, stream), "record");
    must(work(stream));
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "kernel");
    float milliseconds;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "time");
    times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  return {times[kRepeats / 2], times[kRepeats / 10], times[kRepeats * 9 / 10]};
}

// Kernels that the work launches, counted in a graph.
inline int kernels_of(cudaStream_t stream, const Work& work) {
  cudaGraph_t graph;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  must(work(stream));
  check(cudaStreamEndCapture(stream, &graph), "capture");
  size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), "nodes");
  int kernels = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    check(cudaGraphNodeGetType(node, &type), "node");
    kernels += type == cudaGraphNodeTypeKernel;
  }
  check(cudaGraphDestroy(graph), "graph");
  return kernels;
}

// Two large arrays, and how fast one becomes the other.
class Copy {
 public:
  static constexpr size_t kBytes = size_t{4} << 30;

  Copy() : source_(kBytes), target_(kBytes) { check(cudaMemset(source_.get(), 1, kBytes), "fill"); }

  // Copies the first bytes from one place to the same of the other.
  const char* run(cudaStream_t stream, size_t first, size_t bytes) const {
    check(cudaMemcpyAsync(target_.get() + first, source_.get() + first, bytes,
                          cudaMemcpyDeviceToDevice, stream),
          "copy");
    return nullptr;
  }

  // Bytes a second, read and written.
  double rate(cudaStream_t stream) const {
    const Time time = measure(stream, [&](cudaStream_t s) { return run(s, 0, kBytes); });
    return 2.0 * kBytes / time.median * 1e3;
  }

 private:
  DeviceArray<unsigned char> source_, target_;
};

}  // namespace narrowcast::test
