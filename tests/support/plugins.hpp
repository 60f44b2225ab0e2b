// The plugins of this build, for tests that hold for every format.
#pragma once

#include <algorithm>
#include <filesystem>
#include <vector>

#include "runtime/plugin/registry.hpp"

namespace narrowcast::test {

// NARROWCAST_TEST_PLUGINS is the folder where the build puts them.
inline const std::vector<const nc_plugin*>& all_plugins() {
  static const std::vector<const nc_plugin*> kPlugins = [] {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(NARROWCAST_TEST_PLUGINS)) {
      if (entry.path().extension() == ".so") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    std::vector<const nc_plugin*> plugins;
    for (const auto& file : files) plugins.push_back(&load_plugin(file.string()));
    return plugins;
  }();
  return kPlugins;
}

}  // namespace narrowcast::test
