// The program around a benchmark of the GPU: the formats that are named, or all.
#pragma once

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tests/support/cuda_memory.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {

// Calls run(plugins) with those that have GPU kernels, and returns the program's exit status.
template <class Run>
int gpu_program(const char* name, int argc, char** argv, const Run& run) {
  if (!has_gpu()) {
    std::printf("no GPU here: nothing measured\n");
    return 0;
  }
  try {
    std::vector<const nc_plugin*> plugins;
    for (const nc_plugin* plugin : all_plugins()) {
      const bool wanted = argc == 1 || std::find(argv + 1, argv + argc,
                                                 std::string(plugin->format->name)) != argv + argc;
      if (wanted && plugin->cuda != nullptr) plugins.push_back(plugin);
    }
    run(plugins);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
  return 0;
}

}  // namespace narrowcast::test
