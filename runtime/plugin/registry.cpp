#include "runtime/plugin/registry.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <span>

#include "runtime/plugin/same_facts.hpp"
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
  if (format.empty()) return nullptr;  // plain parameters are no format
  for (const LoadedPlugin& plugin : all.plugins) {
    if (format_of(*plugin.table) == format) return &plugin;
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

std::span<const nc_update_rule> rules_of(const nc_plugin& table) {
  return {table.update_rules, static_cast<size_t>(table.update_rule_count)};
}

// Refuses a rule that another library has. `of`: what both update; empty if they do not.
void check_rule(const LoadedPlugin& other, const std::string& path, const nc_update_rule& rule,
                const std::string& of) {
  const int64_t place = find_rule(*other.table, rule.name);
  if (place < 0) return;
  const std::string named = std::string("the rule '") + rule.name + "'";
  if (!of.empty())
    refuse(path,
           "brings " + named + " for " + of + ", which '" + other.path + "' has already brought");
  if (!same_rule(rule, other.table->update_rules[place]))
    refuse(path, "was built with another version of " + named + " than '" + other.path +
                     "': build both again from one header");
}

// Refuses what cannot stand beside a library that is loaded.
void check_beside(const LoadedPlugin& other, const std::string& path, const nc_plugin& table) {
  const std::string_view format = format_of(table);
  std::string of;
  if (format_of(*other.table) == format)
    of = format.empty() ? "plain parameters" : "the format '" + std::string(format) + "'";
  if (!of.empty() && !same_format(table, *other.table))
    refuse(path, "was built for another version of " + of + " than '" + other.path +
                     "': build it again with `narrowcast build`");
  for (const nc_update_rule& rule : rules_of(table)) check_rule(other, path, rule, of);
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
    for (const LoadedPlugin& other : all.plugins) check_beside(other, path, table);
    all.plugins.push_back({&table, canonical});
    return table;
  } catch (...) {
    dlclose(library);
    throw;
  }
}

void enter_plugin(const nc_plugin& table, std::string_view path) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.plugins.insert(all.plugins.begin(), {&table, std::string(path)});
}

std::string_view format_of(const nc_plugin& table) {
  const char* name = table.format->name;
  return name == nullptr ? std::string_view() : name;
}

const nc_plugin* find_plugin(std::string_view format) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const LoadedPlugin* plugin = find(all, format);
  return plugin == nullptr ? nullptr : plugin->table;
}

int64_t find_rule(const nc_plugin& plugin, std::string_view name) {
  const auto found = std::ranges::find(rules_of(plugin), name, &nc_update_rule::name);
  return found == rules_of(plugin).end() ? -1 : found - rules_of(plugin).begin();
}

std::vector<LoadedPlugin> loaded_plugins() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.plugins;
}

}  // namespace narrowcast
