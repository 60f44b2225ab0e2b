// The law of flat shards on the GPU: its owners write the bytes that the CPU's whole cast has.
#include <doctest/doctest.h>

#include <set>

#include "tests/support/cuda_memory.hpp"
#include "tests/support/flat_shards.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

// What the GPU and this program both reach.
struct ManagedMemory {
  static void* allocate(size_t bytes) {
    void* memory = nullptr;
    test::check(cudaMallocManaged(&memory, bytes), "cudaMallocManaged");
    return memory;
  }
  static void release(void* memory) { cudaFree(memory); }
  static void wait() { test::check(cudaDeviceSynchronize(), "a launch"); }
};

template <class Action>
void for_each_format(Extent matrix, const Action& action) {
  if (!has_gpu()) return;
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    if (holds(*plugin->format, matrix)) action(*plugin);
  }
}

std::vector<int64_t> drawn_cuts(Random& random, int64_t elements, int count) {
  std::multiset<int64_t> cuts;
  for (int i = 0; i < count; ++i) cuts.insert(random.below(static_cast<int>(elements) + 1));
  return {cuts.begin(), cuts.end()};
}

TEST_CASE("flat shards on the GPU: small matrices, cut anywhere") {
  constexpr Extent kMatrix{36, 52};
  constexpr int64_t kElements = kMatrix.rows * kMatrix.columns;
  for_each_format(kMatrix, [&](const nc_plugin& plugin) {
    Random random(1);
    const Subject<ManagedMemory> subject(plugin, *plugin.cuda, kMatrix,
                                         draw(Kind::kBits, kElements, 1));
    for (int i = 0; i < 40; ++i) subject.check(drawn_cuts(random, kElements, 1 + i % 5));
    for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{
             {}, {0, 700}, {700, 700}, {700, kElements}, {1, 2, 3, 4}, {kElements - 1}})
      subject.check(cuts);
  });
}

TEST_CASE("flat shards on the GPU: full tiles beside cut ones, casts and updates") {
  for (const Extent matrix : {Extent{304, 304}, Extent{256, 512}, Extent{100, 60}}) {
    for_each_format(matrix, [&](const nc_plugin& plugin) {
      Random random(2);
      const int64_t elements = matrix.rows * matrix.columns;
      for (const bool stochastic : {false, true}) {
        const Subject<ManagedMemory> subject(plugin, *plugin.cuda, matrix,
                                             draw(Kind::kOrdinary, elements, 3),
                                             options(!stochastic, stochastic));
        for (int i = 0; i < 4; ++i) {
          subject.check(drawn_cuts(random, elements, 2));
          std::vector<int64_t> aligned = drawn_cuts(random, elements / 64, 2);
          for (int64_t& cut : aligned) cut *= 64;
          subject.check(aligned);
          subject.check_update(aligned);
          subject.check_update(drawn_cuts(random, elements, 3));
        }
      }
    });
  }
}

// So large that many thread blocks of a cast have a strip of tiles, some of which are cut, and so
// wide that the ends of shards alone are as many.
TEST_CASE("flat shards on the GPU: strips of tiles") {
  constexpr Extent kMatrix{520, 40960};
  constexpr int64_t kElements = kMatrix.rows * kMatrix.columns;
  const std::vector<float> values = draw(Kind::kOrdinary, kElements, 4);
  for_each_format(kMatrix, [&](const nc_plugin& plugin) {
    if (plugin.cuda->tile_rows == plugin.cuda->step_rows) return;
    const Subject<ManagedMemory> subject(plugin, *plugin.cuda, kMatrix, values);
    subject.check({64 * kMatrix.columns + 5, kElements - 5 * kMatrix.columns});
    subject.check_update({64 * kMatrix.columns + 5});
  });
}

}  // namespace
}  // namespace narrowcast::test
