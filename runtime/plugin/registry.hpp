// The libraries that are loaded: of formats, found by name, and of plain parameters. A format may
// have several, each with kernels of other rules.
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
// returns the same table. If its format is loaded already, its rules join those of the format.
// Throws PluginError if the file is missing, cut short, damaged, no plugin, or of another version,
// all before anything of it runs; or if its table is broken, its format or a rule has other facts
// than what is loaded, or another file has already brought a rule of that name for the format. A
// plugin is code: what it does when it is loaded, and later, nothing here can check.
const nc_plugin& load_plugin(std::string_view path);

// Enters a library that the program itself has, called `path` in messages, as the first.
void enter_plugin(const nc_plugin& table, std::string_view path);

// The name of its format; empty if it updates plain parameters.
std::string_view format_of(const nc_plugin& table);

// The first that was loaded of a format. nullptr if no loaded plugin exports it.
const nc_plugin* find_plugin(std::string_view format);

// The place of a rule among those of a plugin. -1 if it has none of this name.
int64_t find_rule(const nc_plugin& plugin, std::string_view name);

// In the order of loading.
std::vector<LoadedPlugin> loaded_plugins();

}  // namespace narrowcast
