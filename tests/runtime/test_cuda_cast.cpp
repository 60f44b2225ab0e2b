// The law, between the machines: for every format, the bytes and values of casts, derivations and
// decodings on the GPU are the CPU's.
#include <doctest/doctest.h>

#include "tests/support/cuda_quantized.hpp"
#include "tests/support/large_values.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

// How an element's code is chosen among its neighbours, and from what value.
struct Rounding {
  bool source_bf16 = false;
  bool stochastic = false;
  uint64_t seed = 0, step = 0, first = 0;

  void apply(nc_tensor& tensor, nc_launch& launch) const {
    tensor.seed = seed;
    tensor.step = step;
    tensor.first = first;
    launch.source_bf16 = source_bf16;
    launch.stochastic = stochastic;
  }
};

// What a matrix is cast from, on both machines.
template <class Type>
struct Source {
  nc_dtype dtype;
  std::vector<Type> host;
  DeviceArray<Type> device;

  Source(nc_dtype dtype, std::vector<Type> values)
      : dtype(dtype), host(std::move(values)), device(host) {}
};

// One matrix of a format, quantized on both machines.
class Pair {
 public:
  Pair(const nc_plugin& plugin, Extent matrix)
      : plugin_(plugin),
        matrix_(matrix),
        expected_(*plugin.format, matrix),
        device_(expected_),
        tensor_(tensor_of(matrix)),
        device_tensors_{tensor_} {
    expected_.connect(*plugin.format, tensor_);
    device_.connect(*plugin.format, device_tensors_[0]);
  }

  template <class Type>
  void expect_equal_casts(const Source<Type>& source, const Rounding& rounding) {
    use(source.dtype, const_cast<Type*>(source.host.data()), source.device.get());
    float amax = 0;
    nc_launch launch = cpu_launch(&amax);
    rounding.apply(tensor_, launch);
    REQUIRE(quantize(*plugin_.cpu, launch) == nullptr);
    const DeviceArray<float> device_amax(std::vector<float>{0});
    launch = cuda_launch(device_amax.get());
    rounding.apply(device_tensors_[0], launch);
    REQUIRE(run(quantizing(*plugin_.cuda), launch, device_tensors_) == nullptr);
    expect_equal_bytes();
  }

  // Columnwise from the rowwise bytes, where it can be, is what the cast wrote.
  void expect_equal_columnwise() {
    if (plugin_.cuda->derive_columnwise == nullptr) return;
    for (int b : {NC_COLUMNWISE_DATA, NC_COLUMNWISE_SCALE})
      check(cudaMemset(device_.buffer[b].get(), 0, device_.buffer[b].size()), "clear");
    REQUIRE(run(plugin_.cuda->derive_columnwise,
                cuda_launch(nullptr, plugin_.cuda->derive_columnwise), device_tensors_) == nullptr);
    expect_equal_bytes();
  }

  // Codes as no cast makes them: every byte, with bits in it that are no code's. Scales stay.
  void fill_with_every_byte() {
    for (const int b : {NC_ROWWISE_DATA, NC_COLUMNWISE_DATA}) {
      std::vector<uint8_t>& bytes = expected_.buffer[b];
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 167 + i / 256);
      check(cudaMemcpy(device_.buffer[b].get(), bytes.data(), bytes.size(), cudaMemcpyDefault),
            "copy");
    }
  }

  // Decoding, both usages.
  template <class Type>
  void expect_equal_values(nc_dtype dtype) {
    std::vector<Type> values(static_cast<size_t>(matrix_.rows * matrix_.columns));
    const DeviceArray<Type> device_values(values.size());
    use(dtype, values.data(), device_values.get());
    const nc_launch on_cpu = cpu_launch();
    for (bool columnwise : {false, true}) {
      CAPTURE(columnwise);
      const auto pick = [&](const nc_machine& machine) {
        return columnwise ? machine.dequantize_columnwise : machine.dequantize_rowwise;
      };
      REQUIRE(pick(*plugin_.cpu)(&on_cpu) == nullptr);
      const nc_function on_gpu = pick(*plugin_.cuda);
      REQUIRE(run(on_gpu, cuda_launch(nullptr, on_gpu), device_tensors_) == nullptr);
      CHECK(same(device_values.download(), values));
    }
  }

 private:
  void use(nc_dtype dtype, void* value, void* device_value) {
    tensor_.value_dtype = device_tensors_[0].value_dtype = dtype;
    tensor_.value = value;
    device_tensors_[0].value = device_value;
  }
  nc_launch cpu_launch(float* amax = nullptr) {
    nc_launch launch = launch_of(*plugin_.cpu, &tensor_, 1, nullptr, amax);
    launch.parallel_for = on_all_threads;
    return launch;
  }
  nc_launch cuda_launch(float* amax = nullptr, nc_function function = nullptr) {
    return launch_of(*plugin_.cuda, device_tensors_.data(), 1, nullptr, amax, function);
  }
  void expect_equal_bytes() {
    const Quantized actual = device_.download(*plugin_.format, matrix_);
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
      CAPTURE(b);
      CHECK(actual.buffer[b] == expected_.buffer[b]);
    }
    CHECK(bits_of(actual.amax) == bits_of(expected_.amax));
    CHECK(actual == expected_);  // the history too
  }

  const nc_plugin& plugin_;
  Extent matrix_;
  Quantized expected_;
  DeviceQuantized device_;
  nc_tensor tensor_;
  std::vector<nc_tensor> device_tensors_;
};

// Drawn once for all formats. One of the three places of the first element is taken in turn.
TEST_CASE("quantize: GPU bytes are CPU bytes") {
  if (!has_gpu()) return;
  uint64_t seed = 1;
  for (const Extent matrix : kShapes) {
    CAPTURE(matrix.rows);
    CAPTURE(matrix.columns);
    for (const Kind kind : kKinds) {
      CAPTURE(static_cast<int>(kind));
      const std::vector<float> values = draw(kind, matrix.rows * matrix.columns, ++seed);
      const Source<float> f32(NC_F32, values);
      const Source<Bf16> bf16(NC_BF16, narrowed<Bf16>(values));
      const Source<F16> f16(NC_F16, narrowed<F16>(values));
      uint64_t turn = seed;
      for (const nc_plugin* plugin : all_plugins()) {
        if (!ready(*plugin) || !holds(*plugin->format, matrix)) continue;
        CAPTURE(std::string(plugin->format->name));
        constexpr uint64_t kFirsts[] = {0, 64, 7};
        const Rounding stochastic{.stochastic = true,
                                  .seed = seed << 40,
                                  .step = seed << 30,
                                  .first = kFirsts[turn++ % 3]};
        Pair pair(*plugin, matrix);
        pair.expect_equal_casts(f32, stochastic);
        pair.expect_equal_casts(f32, {.source_bf16 = true});
        pair.expect_equal_casts(bf16, {});
        pair.expect_equal_values<Bf16>(NC_BF16);
        pair.expect_equal_casts(f16, {});
        pair.expect_equal_values<F16>(NC_F16);
        pair.expect_equal_casts(f32, {});
        pair.expect_equal_columnwise();
        pair.expect_equal_values<float>(NC_F32);
      }
    }
  }
}

TEST_CASE("dequantize: GPU values are CPU values, of every byte") {
  if (!has_gpu()) return;
  for (const Extent matrix : kShapes) {
    CAPTURE(matrix.rows);
    CAPTURE(matrix.columns);
    const Source<float> source(NC_F32, draw(kKinds[0], matrix.rows * matrix.columns, 1));
    for (const nc_plugin* plugin : all_plugins()) {
      if (!ready(*plugin) || !holds(*plugin->format, matrix)) continue;
      CAPTURE(std::string(plugin->format->name));
      Pair pair(*plugin, matrix);
      pair.expect_equal_casts(source, {});
      pair.fill_with_every_byte();
      pair.expect_equal_values<Bf16>(NC_BF16);
      pair.expect_equal_values<F16>(NC_F16);
      pair.expect_equal_values<float>(NC_F32);
    }
  }
}

TEST_CASE("quantize: GPU bytes are CPU bytes, over 1e8 elements of every kind") {
  if (!has_gpu()) return;
  const Source<float> source(NC_F32, draw_runs(kLarge.rows * kLarge.columns, 7));
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    Pair pair(*plugin, kLarge);
    pair.expect_equal_casts(source, {});
    pair.expect_equal_columnwise();
    pair.expect_equal_values<float>(NC_F32);
  }
}

}  // namespace
}  // namespace narrowcast::test
