#include "codegen/type_names.hpp"

namespace narrowcast::codegen {
namespace {

// OCP's int8 element is n / 64 under a power-of-two scale; under an fp32 scale it is the integer.
std::string element_name(const Plan& plan) {
  switch (plan.element) {
    case Element::kE4M3:
      return "E4M3";
    case Element::kE5M2:
      return "E5M2";
    case Element::kE2M1:
      return "E2M1";
    case Element::kE2M3:
      return "E2M3";
    case Element::kE3M2:
      return "E3M2";
    case Element::kInt8:
      return plan.scale == ScaleType::kE8M0 ? "MxInteger8" : "Integer8";
  }
  return {};
}

std::string scale_name(ScaleType scale) {
  switch (scale) {
    case ScaleType::kE8M0:
      return "E8M0";
    case ScaleType::kE4M3:
      return "E4M3Scale";
    case ScaleType::kF32:
      return "F32";
  }
  return {};
}

std::string rule_name(ScaleRule rule) {
  switch (rule) {
    case ScaleRule::kExact:
      return "Exact";
    case ScaleRule::kNearestEven:
      return "NearestEven";
    case ScaleRule::kFloor:
      return "Floor";
    case ScaleRule::kEven:
      return "Even";
    case ScaleRule::kRceil:
      return "Rceil";
  }
  return {};
}

}  // namespace

TypeNames type_names_of(const Plan& plan) {
  TypeNames names;
  names.element = element_name(plan);
  names.header = plan.element == Element::kInt8 ? "runtime/numeric/int8.hpp"
                                                : "runtime/numeric/small_float.hpp";
  names.scale = scale_name(plan.scale);
  names.rule = rule_name(plan.rule) + "<" + names.scale + ", " + names.element + ">";
  names.decoder =
      plan.two_levels ? "TwoLevels<" + names.element + ">" : "OneLevel<" + names.scale + ">";
  return names;
}

}  // namespace narrowcast::codegen
