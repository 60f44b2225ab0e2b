// The program that a generated test.cpp is: every instruction set of this processor must make the
// golden bytes of its format.
#pragma once

#include <cstdio>
#include <exception>
#include <initializer_list>

#include "runtime/golden/check.hpp"
#include "runtime/plugin/registry.hpp"

namespace narrowcast::golden {

// Prints what was checked and what differs. Returns the number of faults.
inline int check(const nc_plugin& plugin, std::initializer_list<Bytes> cases) {
  int faults = 0;
  std::string checked;
  for (const char* const* variant = plugin.cpu_variants; *variant != nullptr; ++variant) {
    for (const Bytes& golden : cases) {
      const std::string difference = fault(plugin, *variant, golden);
      if (difference.empty()) continue;
      ++faults;
      std::fprintf(stderr, "%s on %s, a %lldx%lld matrix: %s\n", plugin.format->name, *variant,
                   static_cast<long long>(golden.matrix.rows),
                   static_cast<long long>(golden.matrix.columns), difference.c_str());
    }
    checked += (checked.empty() ? "" : ", ") + std::string(*variant);
  }
  if (faults == 0) {
    std::printf("%s: golden bytes as defined, on %s: cast%s and decoding of %d matrices\n",
                plugin.format->name, checked.c_str(),
                plugin.cpu->derive_columnwise == nullptr ? "" : ", derived columnwise",
                static_cast<int>(cases.size()));
  }
  return faults;
}

// The one argument is the plugin's file. 1: other bytes; 3: the file cannot be loaded.
inline int test_main(int argc, char** argv, std::initializer_list<Bytes> cases) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s PLUGIN\n", argv[0]);
    return 2;
  }
  try {
    return check(load_plugin(argv[1]), cases) == 0 ? 0 : 1;
  } catch (const PluginError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace narrowcast::golden
