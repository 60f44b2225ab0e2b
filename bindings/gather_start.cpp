// How a gather of FSDP2's begins where nobody has to be asked: in C++, where it is a fraction of
// the work. Python's objects lie scattered in memory, and so does code of Python's.
#include "bindings/gather_group.hpp"
#include "bindings/module.hpp"
#include "bindings/python_tensors.hpp"

namespace narrowcast {
namespace {

// Names of attributes and of a module, which Python's fsdp.torch_names knows.
struct Fsdp2Names {
  py::str training_state;
  py::object forward, pre_backward;  // the values of that in a pass
  py::str tree, root;                // of a state; of a tree, whose forward runs
  py::str schedules;                 // where it was imported, a backward may be taken apart
};

class Fsdp2Group {
 public:
  // Weak references to a group, and to the state of its module.
  Fsdp2Group(py::object group, py::object state, Fsdp2Names names)
      : group_(std::move(group)), state_(std::move(state)), names_(std::move(names)) {}

  bool is_forward() const { return state().is(names_.forward); }
  bool is_backward() const { return state().is(names_.pre_backward); }
  bool may_be_taken_apart() const {
    return PyDict_Contains(PyImport_GetModuleDict(), names_.schedules.ptr()) != 0;
  }

  // The number of the last agreement about the group's tree, if it was in the forward that runs
  // now; else 0.
  int64_t agreed_in_forward() const {
    static PyObject* const kLast = PyUnicode_InternFromString("last_agreement");
    static PyObject* const kNumber = PyUnicode_InternFromString("number");
    static PyObject* const kRoot = PyUnicode_InternFromString("root");
    static PyObject* const kForward = PyUnicode_InternFromString("forward");
    static PyObject* const kForwards = PyUnicode_InternFromString("forwards");
    const py::object tree = attribute(state_(), names_.tree.ptr());
    const py::object last = attribute(tree, kLast), root = attribute(tree, names_.root.ptr());
    if (!last || last.is_none() || root.is_none() || !attribute(last, kRoot)().is(root)) return 0;
    if (!attribute(last, kForward).equal(attribute(tree, kForwards))) return 0;
    return attribute(last, kNumber).cast<int64_t>();
  }

 private:
  py::object state() const { return attribute(group_(), names_.training_state.ptr()); }

  py::object group_, state_;
  Fsdp2Names names_;
};

class GatherStart {
 public:
  // `asks`: ranks agree about the shards before a forward.
  GatherStart(std::shared_ptr<GatherGroup> gathers, Fsdp2Group fsdp2, bool asks)
      : gathers_(std::move(gathers)), fsdp2_(std::move(fsdp2)), asks_(asks) {}

  // Of the shards, since they were looked at.
  void watch(std::shared_ptr<Watch> watch) { watch_ = std::move(watch); }
  bool are_quiet() const { return watch_ != nullptr && watch_->is_quiet(); }

  // The number of the agreement before the last gather.
  int64_t agreed = 0;
  // Whether the ranks have agreed in the forward that runs, and not before this group's last
  // gather.
  bool have_agreed() {
    const int64_t number = fsdp2_.agreed_in_forward();
    return number != 0 && std::exchange(agreed, number) != number;
  }

  // Packs; whether it is the backward's. Nothing, and nothing is done, if somebody has to be asked.
  std::optional<bool> begin() {
    if (!are_quiet()) return {};
    const bool backward = fsdp2_.is_backward();
    if (backward ? fsdp2_.may_be_taken_apart() : asks_ && !have_agreed()) return {};
    pack(backward);
    return backward;
  }
  void pack(bool backward) {
    const bool is_ahead = asks_ && ahead_ == agreed && fsdp2_.is_forward();
    gathers_->pack(backward, backward || is_ahead);
  }

  // After an agreement of a number, in the forward that begins with it: what the gathers pack of
  // groups that it was about, where their shards are as they were.
  static void pack_ahead(const std::vector<GatherStart*>& starts, int64_t number) {
    std::vector<GatherGroup*> groups;
    for (GatherStart* start : starts) {
      if (!start->asks_ || !start->are_quiet()) continue;
      groups.push_back(start->gathers_.get());
      start->ahead_ = number;
    }
    GatherGroup::pack_ahead(groups);
  }

 private:
  std::shared_ptr<GatherGroup> gathers_;
  Fsdp2Group fsdp2_;
  std::shared_ptr<Watch> watch_;
  bool asks_;
  int64_t ahead_ = 0;  // the number of the agreement after which it was packed
};

}  // namespace

void bind_gather_start(py::module_& module) {
  py::class_<Fsdp2Group>(module, "Fsdp2Group", "What FSDP2 says of a group.")
      .def(py::init([](py::object group, py::object state, py::str training_state,
                       py::object forward, py::object pre_backward, py::str tree, py::str root,
                       py::str schedules) {
             return Fsdp2Group(
                 std::move(group), std::move(state),
                 {std::move(training_state), std::move(forward), std::move(pre_backward),
                  std::move(tree), std::move(root), std::move(schedules)});
           }),
           py::arg("group"), py::arg("state"), py::arg("training_state"), py::arg("forward"),
           py::arg("pre_backward"), py::arg("tree"), py::arg("root"), py::arg("schedules"));
  py::class_<GatherStart>(module, "GatherStart", "What begins the gathers of a group.")
      .def(py::init<std::shared_ptr<GatherGroup>, Fsdp2Group, bool>(), py::arg("gathers"),
           py::arg("fsdp2"), py::arg("asks"))
      .def("watch", &GatherStart::watch)
      .def_property_readonly("are_quiet", &GatherStart::are_quiet)
      .def_readwrite("agreed", &GatherStart::agreed)
      .def("have_agreed", &GatherStart::have_agreed)
      .def("begin", &GatherStart::begin)
      .def("pack", &GatherStart::pack, py::arg("backward"))
      .def_static("pack_ahead", &GatherStart::pack_ahead, py::arg("starts"), py::arg("number"));
}

}  // namespace narrowcast
