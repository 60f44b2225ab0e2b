// The tables of an optimizer's step, as Python has them.
#include "bindings/optimizer/update_table.hpp"

#include "bindings/core/module.hpp"
#include "runtime/optimizer/plain.hpp"

namespace narrowcast {
namespace {

const nc_machine& machine_of(const Plugin* plugin, at::Device device) {
  if (plugin != nullptr) return plugin->machine(device);
  const nc_plugin& plain = plain_plugin();
  if (device.is_cpu()) return *plain.cpu;
  if (device.is_cuda() && plain.cuda != nullptr) return *plain.cuda;
  not_implemented(
      "a fused optimizer cannot update parameters on ", device.str(),
      device.is_cuda() ? ": narrowcast was built without GPU kernels" : ": cpu and cuda only");
}

const nc_plugin& library_of(const Plugin* plugin) {
  return plugin != nullptr ? *plugin->table : plain_plugin();
}

std::span<const nc_state_format> states_of(const nc_plugin& library) {
  return {library.state_formats, static_cast<size_t>(library.state_format_count)};
}

// The place of a rule of that name among those of the plugin, or of plain parameters.
int64_t place_of(const std::string& rule, const Plugin* plugin) {
  const nc_plugin& library = library_of(plugin);
  const int64_t place = find_rule(library, rule);
  if (place >= 0) return place;
  std::string known;
  for (int64_t i = 0; i < library.update_rule_count; ++i)
    known.append(i == 0 ? "" : ", ").append(library.update_rules[i].name);
  if (plugin == nullptr)
    not_implemented("plain parameters cannot be updated by the rule ", rule, ", only by ", known,
                    ": build narrowcast again with its header in NARROWCAST_RULES");
  not_implemented("the plugin of ", plugin->format().name, " (", plugin->path,
                  ") was built without the rule ", rule, ": it has ", known,
                  ". Build it again by the narrowcast that has the rule");
}

// The names of a rule's options and of its states, as Python has them, and whether each state never
// is below 0; the last is empty where the rule cannot be kept in state formats.
using RuleFacts = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<bool>>;

RuleFacts rule_facts(const std::string& rule) {
  const nc_update_rule& facts = plain_plugin().update_rules[place_of(rule, nullptr)];
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
                         bool stochastic)
    : rule_(place_of(rule, plugin)),
      facts_(library_of(plugin).update_rules[rule_]),
      states_(states_of(library_of(plugin))),
      stochastic_(stochastic),
      spans_(plugin != nullptr && plugin->format().tensor_amax != 0),
      table_(machine_of(plugin, device), device),
      ends_(table_.machine(), device) {}

UpdateTable::UpdateTable(const std::string& rule, std::shared_ptr<FlatShards> shards,
                         bool stochastic, OptionalTensor exchange, OptionalTensor skips)
    : rule_(place_of(rule, &shards->plugin())),
      facts_(shards->plugin().table->update_rules[rule_]),
      states_(states_of(*shards->plugin().table)),
      stochastic_(stochastic),
      spans_(shards->spans()),
      shards_(std::move(shards)),
      exchange_(std::move(exchange)),
      skips_(std::move(skips)),
      table_(shards_->machine(), shards_->device()),
      ends_(shards_->machine(), shards_->device()) {}

void bind_optimizer(py::module_& module) {
  module.def("rule_facts", rule_facts);
  module.def("state_formats", state_facts);
  py::class_<UpdateTable>(module, "UpdateTable")
      .def(py::init<const std::string&, const Plugin*, at::Device, bool>(), py::keep_alive<1, 3>())
      .def(py::init<const std::string&, std::shared_ptr<FlatShards>, bool, OptionalTensor,
                    OptionalTensor>())
      .def("add", &UpdateTable::add)
      .def("prepare", &UpdateTable::prepare)
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
