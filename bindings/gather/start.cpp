// How a gather of FSDP2's begins where nothing has changed since the last one: in C++, where it is
// a fraction of the work. Python's objects lie scattered in memory, and so does code of Python's.
#include "bindings/core/module.hpp"
#include "bindings/core/python_tensors.hpp"
#include "bindings/gather/group.hpp"

namespace narrowcast {
namespace {

// Names of attributes and of a module, which Python's fsdp.torch_names knows.
struct Fsdp2Names {
  py::str training_state;
  py::object pre_backward;  // its value in a backward
  py::str schedules;        // where it was imported, a backward may be taken apart
};

class Fsdp2Group {
 public:
  // A weak reference to a group.
  Fsdp2Group(py::object group, Fsdp2Names names)
      : group_(std::move(group)), names_(std::move(names)) {}

  bool is_backward() const {
    return attribute(group_(), names_.training_state.ptr()).is(names_.pre_backward);
  }
  bool may_be_taken_apart() const {
    return PyDict_Contains(PyImport_GetModuleDict(), names_.schedules.ptr()) != 0;
  }

 private:
  py::object group_;
  Fsdp2Names names_;
};

class GatherStart {
 public:
  // `asks`: before a forward, ranks without rows ask the others.
  GatherStart(std::shared_ptr<GatherGroup> gathers, Fsdp2Group fsdp2, bool asks)
      : gathers_(std::move(gathers)), fsdp2_(std::move(fsdp2)), asks_(asks) {}

  // Of the shards, since they were looked at.
  void watch(std::shared_ptr<Watch> watch) { watch_ = std::move(watch); }
  bool are_quiet() const { return watch_ != nullptr && watch_->is_quiet(); }

  // Packs; whether it is the backward's. Nothing, and nothing is done, if Python has to see to the
  // shards before, or what several groups pack is to be packed together.
  std::optional<bool> begin() {
    if (!are_quiet()) return {};
    const bool backward = fsdp2_.is_backward();
    if (backward ? fsdp2_.may_be_taken_apart() : asks_ || !gathers_->is_packed()) return {};
    pack(backward);
    return backward;
  }
  void pack(bool backward) { gathers_->pack(backward); }

  // What the next gathers of some groups pack, where their shards are as they were.
  static void pack_together(const std::vector<GatherStart*>& starts) {
    std::vector<GatherGroup*> groups;
    for (GatherStart* start : starts) {
      if (start->are_quiet()) groups.push_back(start->gathers_.get());
    }
    GatherGroup::pack_together(groups);
  }

 private:
  std::shared_ptr<GatherGroup> gathers_;
  Fsdp2Group fsdp2_;
  std::shared_ptr<Watch> watch_;
  bool asks_;
};

}  // namespace

void bind_gather_start(py::module_& module) {
  py::class_<Fsdp2Group>(module, "Fsdp2Group", "What FSDP2 says of a group.")
      .def(py::init([](py::object group, py::str training_state, py::object pre_backward,
                       py::str schedules) {
             return Fsdp2Group(std::move(group), {std::move(training_state),
                                                  std::move(pre_backward), std::move(schedules)});
           }),
           py::arg("group"), py::arg("training_state"), py::arg("pre_backward"),
           py::arg("schedules"));
  py::class_<GatherStart>(module, "GatherStart", "What begins the gathers of a group.")
      .def(py::init<std::shared_ptr<GatherGroup>, Fsdp2Group, bool>(), py::arg("gathers"),
           py::arg("fsdp2"), py::arg("asks"))
      .def("watch", &GatherStart::watch)
      .def_property_readonly("are_quiet", &GatherStart::are_quiet)
      .def("begin", &GatherStart::begin)
      .def("pack", &GatherStart::pack, py::arg("backward"))
      .def_static("pack_together", &GatherStart::pack_together, py::arg("starts"));
}

}  // namespace narrowcast
