// The tables of an optimizer's step, as Python has them.
#include "bindings/optimizer/update_table.hpp"

#include "bindings/core/module.hpp"
#include "runtime/optimizer/plain.hpp"

namespace narrowcast {
namespace {

const nc_machine& machine_of(const LoadedPlugin& library, at::Device device) {
  const nc_plugin& table = *library.table;
  if (!format_of(table).empty()) return Plugin{&table, library.path}.machine(device);
  if (device.is_cpu()) return *table.cpu;
  if (device.is_cuda() && table.cuda != nullptr) return *table.cuda;
  not_implemented(
      "a fused optimizer cannot update parameters on ", device.str(), ": ",
      device.is_cuda() ? library.path + " was built without GPU kernels" : "cpu and cuda only");
}

std::span<const nc_state_format> states_of(const nc_plugin& library) {
  return {library.state_formats, static_cast<size_t>(library.state_format_count)};
}

// The loaded library with a rule of that name for the plugin's format, or for plain parameters.
LoadedPlugin library_with(const std::string& rule, const Plugin* plugin) {
  const std::string format = plugin == nullptr ? "" : plugin->format().name;
  std::string known;
  for (LoadedPlugin& each : loaded_plugins()) {
    if (format_of(*each.table) != format) continue;
    if (find_rule(*each.table, rule) >= 0) return std::move(each);
    for (int64_t i = 0; i < each.table->update_rule_count; ++i)
      known.append(known.empty() ? "" : ", ").append(each.table->update_rules[i].name);
  }
  not_implemented(plugin == nullptr ? "plain parameters" : "weights in the format " + format,
                  " cannot be updated by the rule ", rule, ", only by ", known,
                  ": `narrowcast build --rule ", rule, ".hpp ", format, plugin ? " " : "",
                  "-o FOLDER` compiles it for them, and nc.load_plugin(FOLDER) loads it");
}

// The facts of a rule, which are the same in every library that has it.
const nc_update_rule& rule_named(const std::string& rule) {
  for (const LoadedPlugin& each : loaded_plugins()) {
    const int64_t place = find_rule(*each.table, rule);
    if (place >= 0) return each.table->update_rules[place];
  }
  const LoadedPlugin none = library_with(rule, nullptr);  // the error that says how to build it
  return *none.table->update_rules;
}

// The names of a rule's options and of its states, as Python has them, and whether each state never
// is below 0; the last is empty where the rule cannot be kept in state formats.
using RuleFacts = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<bool>>;

RuleFacts rule_facts(const std::string& rule) {
  const nc_update_rule& facts = rule_named(rule);
  const auto listed = [](const char* const* names) {
    std::vector<std::string> found;
    for (; *names != nullptr; ++names) found.emplace_back(*names);
    return found;
  };
  std::vector<std::string> states = listed(facts.states);
  std::vector<bool> nonnegative;
  if (facts.nonnegative != nullptr)
    nonnegative.assign(facts.nonnegative, facts.nonnegative + states.size());
  return {listed(facts.options), std::move(states), std::move(nonnegative)};
}

// Name, summary, reference, block and roots of each.
py::list state_facts() {
  py::list every;
  for (const nc_state_format& one : states_of(plain_plugin()))
    every.append(py::make_tuple(one.name, one.summary, one.reference, one.block,
                                py::make_tuple(one.root[0], one.root[1])));
  return every;
}

}  // namespace

UpdateTable::UpdateTable(const std::string& rule, const Plugin* plugin, at::Device device,
                         bool stochastic, bool counted)
    : library_(library_with(rule, plugin)),
      rule_(find_rule(*library_.table, rule)),
      facts_(library_.table->update_rules[rule_]),
      states_(states_of(*library_.table)),
      stochastic_(stochastic),
      spans_(plugin != nullptr && plugin->format().tensor_amax != 0),
      table_(machine_of(library_, device), device, counted),
      ends_(table_.machine(), device) {
  if (counted) counted_.emplace(facts_.options, device);
}

UpdateTable::UpdateTable(const std::string& rule, std::shared_ptr<FlatShards> shards,
                         bool stochastic, bool counted, OptionalTensor exchange,
                         OptionalTensor skips)
    : library_(library_with(rule, &shards->plugin())),
      rule_(find_rule(*library_.table, rule)),
      facts_(library_.table->update_rules[rule_]),
      states_(states_of(*library_.table)),
      stochastic_(stochastic),
      spans_(shards->spans()),
      shards_(std::move(shards)),
      exchange_(std::move(exchange)),
      skips_(std::move(skips)),
      table_(machine_of(library_, shards_->device()), shards_->device(), counted),
      ends_(table_.machine(), shards_->device(), counted) {
  if (counted) counted_.emplace(facts_.options, shards_->device());
}

void bind_optimizer(py::module_& module) {
  enter_plugin(plain_plugin(), "narrowcast");
  module.def("rule_facts", rule_facts);
  module.def("state_formats", state_facts);
  py::class_<UpdateTable>(module, "UpdateTable")
      .def(py::init<const std::string&, const Plugin*, at::Device, bool, bool>(),
           py::keep_alive<1, 3>())
      .def(py::init<const std::string&, std::shared_ptr<FlatShards>, bool, bool, OptionalTensor,
                    OptionalTensor>())
      .def("add", &UpdateTable::add)
      .def("prepare", &UpdateTable::prepare)
      .def("prepare_counted", &UpdateTable::prepare_counted)
      .def("replace_gradients", &UpdateTable::replace_gradients)
      .def("share", &UpdateTable::share)
      .def("update", &UpdateTable::update)
      .def("finish", &UpdateTable::finish)
      .def("commit", &UpdateTable::commit)
      .def("find_absent", &UpdateTable::find_absent)
      .def_property_readonly("spans", &UpdateTable::spans)
      .def("__len__", &UpdateTable::size);
}

}  // namespace narrowcast
