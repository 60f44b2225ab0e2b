// The weights that the GPU's benchmarks update and cast: 872M parameters in the shapes of
// Llama-3-8B's linear layers.
#pragma once

#include <vector>

#include "runtime/geometry/geometry.hpp"

namespace narrowcast::test {

inline constexpr int kLayers = 4;
inline constexpr Extent kLayer[] = {{4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096},
                                    {14336, 4096}, {14336, 4096}, {4096, 14336}};

inline std::vector<Extent> all_layers() {
  std::vector<Extent> all;
  for (int layer = 0; layer < kLayers; ++layer) all.insert(all.end(), kLayer, std::end(kLayer));
  return all;
}

}  // namespace narrowcast::test
