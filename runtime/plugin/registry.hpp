// The formats that are loaded: one plugin each, found by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast {

struct LoadedPlugin {
  const nc_plugin* table;
  std::string path;
};

// Loads a plugin for the life of the process and returns its table. Loading the same file again
// returns the same table. Throws PluginError if the file is missing, cut short, damaged, no plugin,
// or of another version, all before anything of it runs; or if its table is broken, or exports a
// format that another file has already brought. A plugin is code: what it does when it is loaded,
// and later, nothing here can check.
const nc_plugin& load_plugin(std::string_view path);

// nullptr if no loaded plugin exports the format.
const nc_plugin* find_plugin(std::string_view format);

// In the order of loading.
std::vector<LoadedPlugin> loaded_plugins();

}  // namespace narrowcast
