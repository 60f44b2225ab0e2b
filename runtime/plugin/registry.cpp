#include "runtime/plugin/registry.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

#include "runtime/plugin/table_checks.hpp"
#include "runtime/plugin/trailer.hpp"

namespace narrowcast {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<LoadedPlugin> plugins;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

const LoadedPlugin* find(const Registry& all, std::string_view format) {
  for (const LoadedPlugin& plugin : all.plugins) {
    if (plugin.table->format->name == format) return &plugin;
  }
  return nullptr;
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw PluginError("plugin '" + path + "' " + reason);
}

// What a table must say of itself before any other field is read, and then what it holds.
const nc_plugin& checked(const std::string& path, const nc_plugin* table) {
  if (table == nullptr) refuse(path, "is broken: " NC_PLUGIN_ENTRY "() returns NULL");
  const std::string other = build_fault(table->version, table->headers);
  if (!other.empty()) refuse(path, other);
  if (const std::string fault = table_fault(*table); !fault.empty()) refuse(path, fault);
  return *table;
}

}  // namespace

const nc_plugin& load_plugin(std::string_view file) {
  const std::string path(file);
  std::error_code ignored;
  const std::string canonical = std::filesystem::weakly_canonical(path, ignored).string();
  if (!std::filesystem::exists(path, ignored)) refuse(path, "does not exist");
  if (std::filesystem::is_directory(path, ignored))
    refuse(path, "is a directory; name the file in it");

  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const LoadedPlugin& plugin : all.plugins) {
    if (plugin.path == canonical) return *plugin.table;
  }
  if (const std::string fault = plugin_fault(path); !fault.empty()) refuse(path, fault);
  void* library = dlopen(canonical.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(path, std::string("cannot be loaded: ") + dlerror());
  try {
    const auto entry = reinterpret_cast<nc_plugin_entry>(dlsym(library, NC_PLUGIN_ENTRY));
    if (entry == nullptr)
      refuse(path, "is not a narrowcast plugin: it does not export " NC_PLUGIN_ENTRY "()");
    const nc_plugin& table = checked(path, entry());
    if (const LoadedPlugin* other = find(all, table.format->name)) {
      refuse(path, std::string("exports the format '") + table.format->name + "', which '" +
                       other->path + "' has already brought");
    }
    all.plugins.push_back({&table, canonical});
    return table;
  } catch (...) {
    dlclose(library);
    throw;
  }
}

const nc_plugin* find_plugin(std::string_view format) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const LoadedPlugin* plugin = find(all, format);
  return plugin == nullptr ? nullptr : plugin->table;
}

std::vector<LoadedPlugin> loaded_plugins() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.plugins;
}

}  // namespace narrowcast
