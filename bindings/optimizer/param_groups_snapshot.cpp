// What an optimizer's Python side was when its tables were made: the parameters in its groups, and
// the state of each. Anyone may put in another or take one out, and torch asks for no call when
// they do; so each step compares, by identity, at some nanoseconds an entry.
#include <utility>
#include <vector>

#include "bindings/core/errors.hpp"
#include "bindings/core/module.hpp"

namespace narrowcast {
namespace {

class ParamGroupsSnapshot {
 public:
  ParamGroupsSnapshot(const py::dict& state, const py::list& groups) {
    for_each(state, groups, [&](PyObject* one) {
      held_.push_back(py::reinterpret_borrow<py::object>(one));
      return true;
    });
  }

  // Whether all is as it was, in the same order.
  bool is_of(const py::dict& state, const py::list& groups) const {
    auto next = held_.begin();
    const bool same = for_each(state, groups, [&](PyObject* one) {
      return next != held_.end() && (next++)->ptr() == one;
    });
    return same && next == held_.end();
  }

 private:
  // Calls action of each parameter with state and what that has, then of each group and its
  // parameters, until it returns false. Whether it never did.
  template <class Action>
  static bool for_each(const py::dict& state, const py::list& groups, const Action& action) {
    PyObject *parameter = nullptr, *entries = nullptr, *key = nullptr, *value = nullptr;
    Py_ssize_t place = 0;
    while (PyDict_Next(state.ptr(), &place, &parameter, &entries) != 0) {
      if (!action(parameter) || !action(entries)) return false;
      Py_ssize_t entry = 0;
      while (PyDict_Next(entries, &entry, &key, &value) != 0) {
        if (!action(value)) return false;
      }
    }
    for (const py::handle group : groups) {
      if (!action(group.ptr())) return false;
      PyObject* parameters = PyDict_GetItemString(group.ptr(), "params");
      if (parameters == nullptr || !PyList_Check(parameters))
        type_error("a group of the optimizer has no list `params`");
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
        if (!action(PyList_GET_ITEM(parameters, i))) return false;
      }
    }
    return true;
  }

  std::vector<py::object> held_;  // so that nothing else has their addresses
};

}  // namespace

void bind_param_groups_snapshot(py::module_& module) {
  py::class_<ParamGroupsSnapshot>(module, "ParamGroupsSnapshot",
                                  "The parameters and the state that tables were made from.")
      .def(py::init<const py::dict&, const py::list&>(), py::arg("state"), py::arg("groups"))
      .def("is_of", &ParamGroupsSnapshot::is_of, py::arg("state"), py::arg("groups"));
}

}  // namespace narrowcast
