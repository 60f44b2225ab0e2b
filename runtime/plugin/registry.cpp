#include "runtime/plugin/registry.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <span>

#include "runtime/plugin/elf.hpp"
#include "runtime/plugin/structs.hpp"

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

// The structs that a plugin's compiler did not lay out as this library's did, in words.
std::string other_structs(const nc_plugin& table) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  const std::span theirs(table.structs, table.structs == nullptr ? 0 : table.struct_count);
  for (const nc_struct& own : kStructs) {
    const auto same_name = [&](const nc_struct& one) {
      return one.name == std::string_view(own.name);
    };
    const auto other = std::find_if(theirs.begin(), theirs.end(), same_name);
    if (other == theirs.end()) {
      add(own.name + std::string(" (not there)"));
    } else if (other->size != own.size) {
      add(own.name + std::string(" (") + std::to_string(other->size) + " bytes, not " +
          std::to_string(own.size) + ")");
    } else if (other->digest != own.digest) {
      add(own.name + std::string(" (other fields)"));
    }
  }
  return names.empty() ? "structs that this library does not know" : names;
}

// What a table must say of itself before a field behind its digest is read.
const nc_plugin& checked(const std::string& path, const nc_plugin* table) {
  if (table == nullptr || table->magic != NC_PLUGIN_MAGIC)
    refuse(path, "is not a narrowcast plugin: its table is not marked as one");
  const std::string remedy = ": build it again with `narrowcast build`";
  if (table->version != NC_PLUGIN_VERSION) {
    refuse(path, "was built for plugin version " + std::to_string(table->version) +
                     ", and this library reads version " + std::to_string(NC_PLUGIN_VERSION) +
                     remedy);
  }
  if (table->size != sizeof(nc_plugin) || table->digest != kStructsDigest) {
    refuse(path, "was built from another text of plugin version " +
                     std::to_string(NC_PLUGIN_VERSION) + ", with other " + other_structs(*table) +
                     remedy);
  }
  if (table->format == nullptr || table->format->name == nullptr || table->cpu == nullptr) {
    refuse(path, "is broken: its table names no format, or has no CPU functions");
  }
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
  if (const std::string fault = shared_library_fault(canonical); !fault.empty())
    refuse(path, fault);

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
