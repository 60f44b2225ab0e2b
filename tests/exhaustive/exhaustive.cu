// The same claims on the GPU, where hardware conversions and the device's arithmetic stand in: all
// 2^32 floats against the same definitions, so that the machines agree by agreeing with them.
#include <cstdio>

#include "runtime/numeric/ordinary.hpp"
#include "runtime/tile/cuda_encode.cuh"
#include "runtime/tile/cuda_lines.cuh"
#include "runtime/tile/cuda_low_end.cuh"
#include "tests/support/claim_list.hpp"
#include "tests/support/cuda_memory.hpp"

namespace narrowcast::test {
namespace {

// A function of steps, in the device's memory.
struct DeviceSteps {
  const uint32_t* firsts;
  const uint64_t* values;
  int count;

  __device__ uint64_t operator()(float x) const {
    const uint32_t bits = bits_of(x);
    int low = 0, high = count;  // firsts[low] <= bits < firsts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (firsts[middle] <= bits) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return values[low];
  }
};

template <class Function, class Definition>
__global__ void count_wrong(Function function, Definition definition, unsigned long long* wrong) {
  unsigned faults = 0;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t bits = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; bits < uint64_t{1} << 32;
       bits += stride) {
    const float x = float_of(static_cast<uint32_t>(bits));
    faults += function(x) != definition(x);
  }
  if (faults != 0) atomicAdd(wrong, static_cast<unsigned long long>(faults));
}

// What the kernels call for four elements, with the hardware's conversion where there is one: of
// products, whose NaN have no sign. The four places must agree.
template <class Element>
struct Encoded4 {
  float one = 1.0f;  // a member, so that the compiler does not know the factor

  __device__ uint64_t operator()(float x) const {
    const float product = x * one;
    if constexpr (IsLowEnd<Element>) {
      const uint64_t code = by_low_end(product);
      // GPUs without conversions to 8 bits take the lines.
      if constexpr (HasLines<Element>) return code == by_lines(product) ? code : ~0u;
      return code;
    } else if constexpr (HasLines<Element>) {
      return by_lines(product);
    } else {
      return same_code<8>(encode4<Element>(product, product, product, product));
    }
  }

  __device__ static uint64_t by_low_end(float product) {
    const CudaCodes codes =
        low_end_codes<Element>([&](int, int) { return product * kToLowEnd<Element>; });
    uint64_t code = same_code<Element::kBits>(pack4<Element::kBits>(codes.row[0]));
    for (const uint32_t row : codes.row) code = same_code<8>(row) == code ? code : ~0u;
    return code;
  }
  __device__ static uint64_t by_lines(float product) {
    LineString<Element> string;
    for (int i = 0; i < 4; ++i) string.push(product);
    return same_code<Element::kBits>(string.packed() & ((1u << 4 * Element::kBits) - 1));
  }

  template <int kBits>
  __device__ static uint64_t same_code(uint32_t codes) {
    const uint32_t code = codes & ((1u << kBits) - 1);
    const uint32_t four = code | code << kBits | code << 2 * kBits | code << 3 * kBits;
    return codes == four ? code : ~0u;
  }
};

// Roots and quotients of ordinary operands, and the compiler's. A pair of operands is drawn for
// each bit pattern: of all magnitudes, or near each other, where quotients are near 1.
template <class Arithmetic>
struct Root {
  __device__ uint64_t operator()(float x) const {
    return bits_of(x >= kSmallestRadicand && x <= kFloatMax ? Arithmetic::root(x) : 0.0f);
  }
};
template <class Arithmetic>
struct Quotient {
  uint64_t seed;

  __device__ uint64_t operator()(float x) const {
    const uint64_t word = (bits_of(x) + (seed << 32)) * 0x9e3779b97f4a7c15u;
    const uint32_t drawn = static_cast<uint32_t>(word >> 32);
    const uint32_t exponent = seed % 2 == 0 ? drawn & kInfinityBits : bits_of(x) & kInfinityBits;
    const float b = float_of(exponent | (drawn & 0x7fffff));
    const float exact = x / b;
    const bool is_ordinary =
        magnitude(x) >= kSmallestDividend && b <= kLargestDivisor && magnitude(exact) <= kFloatMax;
    return bits_of(is_ordinary ? Arithmetic::quotient(x, b) : 0.0f);
  }
};
struct OfOrdinary {
  __device__ static float root(float x) { return ordinary_root(x); }
  // Ordinary finds a NaN.
  __device__ static float quotient(float a, float b) {
    const float quotient = ordinary_quotient(a, b);
    return is_nan(quotient) ? a / b : quotient;
  }
};

class Judge {
 public:
  int false_claims = 0;

  template <class Function>
  void steps(const std::string& name, const Function& function, const Steps& steps) {
    std::vector<uint32_t> firsts;
    std::vector<uint64_t> values;
    for (const Step& step : steps) {
      firsts.push_back(step.first);
      values.push_back(step.value);
    }
    const DeviceArray<uint32_t> device_firsts(firsts);
    const DeviceArray<uint64_t> device_values(values);
    const DeviceSteps definition{device_firsts.get(), device_values.get(),
                                 static_cast<int>(steps.size())};
    judge(name, function, definition);
    if constexpr (requires { typename Function::Element; }) {
      judge(name + ", by fours", Encoded4<typename Function::Element>{}, definition);
    }
  }

  template <class Function, class Definition>
  void equal(const std::string& name, const Function& function, const Definition& definition,
             const std::vector<uint32_t>&) {
    judge(name, function, definition);
  }

 private:
  template <class Function, class Definition>
  void judge(const std::string& name, const Function& function, const Definition& definition) {
    const DeviceArray<unsigned long long> wrong(std::vector<unsigned long long>{0});
    count_wrong<<<4096, 256>>>(function, definition, wrong.get());
    check(cudaDeviceSynchronize(), "kernel");
    const unsigned long long count = wrong.download()[0];
    std::printf("%-44s %10llu wrong of 2^32\n", name.c_str(), count);
    std::fflush(stdout);
    false_claims += count != 0;
  }
};

int run() {
  if (!has_gpu()) {
    std::printf("no GPU here: nothing was tested\n");
    return 0;
  }
  Judge judge;
  visit_claims(judge);
  judge.equal("roots of ordinary floats", Root<OfOrdinary>{}, Root<Ieee>{}, {});
  for (uint64_t seed = 0; seed < 16; ++seed)
    judge.equal("quotients of ordinary floats, seed " + std::to_string(seed),
                Quotient<OfOrdinary>{seed}, Quotient<Ieee>{seed}, {});
  std::printf(judge.false_claims == 0 ? "every claim holds\n" : "%d claims are false\n",
              judge.false_claims);
  return judge.false_claims != 0;
}

}  // namespace
}  // namespace narrowcast::test

int main() { return narrowcast::test::run(); }
