#include "bindings/matmul/tensor_cores.hpp"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_mm.h>

#include <array>
#include <atomic>

#include "bindings/core/module.hpp"
#include "bindings/matmul/scaled_mm.hpp"
#include "bindings/matmul/tensor_core_operand.hpp"

namespace narrowcast {
namespace {

// 10 * major + minor; 0 of the CPU.
int capability(at::Device device) {
  static std::array<std::atomic<int>, 64> known{};
  const c10::DeviceIndex index = device.index();
  if (!device.is_cuda() || index < 0 || index >= std::ssize(known)) return 0;
  std::atomic<int>& found = known[index];
  if (found == 0 && index < static_cast<int>(at::getNumGPUs())) {  // a trace may have others
    const py::gil_scoped_acquire python;
    const auto [major, minor] = py::cast<std::pair<int, int>>(
        py::module_::import("torch.cuda").attr("get_device_capability")(index));
    found = 10 * major + minor;
  }
  return found;
}

// What sizes are multiples of, of a @ b.T: rows of codes begin at multiples of 16 bytes in memory,
// and the groups of sm_100 are whole. `along_kept`: the codes of a are stored along what is
// kept, which sm_100 alone takes.
struct Multiples {
  int64_t a_kept, b_kept, summed;
};

Multiples multiples_of(int32_t kind, bool along_kept = false) {
  switch (kind) {
    case NC_1X128_BY_128X128:
    case NC_1X128_BY_1X128:
      return {4, 16, 16};
    case NC_1X32_E8M0:
    case NC_1X16_E4M3:
      return {along_kept ? 16 : 1, 16, 32};
    default:
      return {1, 16, 16};
  }
}

}  // namespace

bool has_tensor_cores(at::Device device, int32_t kind) {
  switch (kind) {
    case NC_TENSOR_BY_TENSOR:
      return capability(device) >= 89;
    case NC_1X128_BY_128X128:
    case NC_1X128_BY_1X128:
      return capability(device) == 90;
    case NC_1X32_E8M0:
    case NC_1X16_E4M3:
      // Those of sm_120 read 8-bit codes in one order alone.
      return capability(device) / 10 == 10;
    default:
      return false;
  }
}

bool suits_tensor_cores(const Operand& a, const Operand& b, int32_t kind) {
  if (kind == NC_DECODED || !can_be_summed(a) || !can_be_summed(b)) return false;
  const Multiples multiples = multiples_of(kind, a.layout_in_product().transposed);
  return a.kept() % multiples.a_kept == 0 && b.kept() % multiples.b_kept == 0 &&
         a.summed() % multiples.summed == 0;
}

int64_t row_multiple(const Recipe& recipe, at::Device device, bool weight_gradient) {
  int64_t multiple = recipe.rows_of_a_byte();
  const auto count = [&](nc_product_of product, int64_t Multiples::*rows) {
    const int32_t kind = recipe.kind(product);
    if (has_tensor_cores(device, kind)) multiple = std::lcm(multiple, multiples_of(kind).*rows);
  };
  count(NC_PRODUCT_FORWARD, &Multiples::a_kept);
  count(NC_PRODUCT_INPUT_GRADIENT, &Multiples::a_kept);
  if (weight_gradient) count(NC_PRODUCT_WEIGHT_GRADIENT, &Multiples::summed);
  return multiple;
}

at::Tensor tensor_core_matmul(const Operand& a, const Operand& b, int32_t kind, bool fast,
                              at::ScalarType dtype) {
  if (!has_tensor_cores(a.device(), kind) || !suits_tensor_cores(a, b, kind)) return {};
  const at::Tensor made = cublaslt_matmul(a, b, kind, fast, dtype);
  if (made.defined()) return made;
  // torch refuses other sums, which cuBLASLt takes.
  if (kind == NC_1X128_BY_128X128 && a.summed() % 512 != 0) return {};
  const TensorCoreOperand left = tensor_core_operand(a, kind), right = tensor_core_operand(b, kind);
  const bool one_scale = kind == NC_TENSOR_BY_TENSOR;
  // Products of groups give back bfloat16 or float32; a product that is still to be scaled is
  // float32.
  const bool direct =
      one_scale || (dtype != at::kHalf && !left.spanning_scale && !right.spanning_scale);
  // Scales that are swizzled have one dimension, which t() leaves as it is.
  const at::Tensor product =
      at::_scaled_mm(left.codes, right.codes.t(), left.scales, right.scales.t(), {}, {},
                     direct ? dtype : at::kFloat, fast && one_scale);
  if (direct) return product;
  return under_spanning_scales(product, left.spanning_scale, right.spanning_scale, dtype);
}

void bind_tensor_cores(py::module_& module) {
  py::class_<Operand>(module, "Operand", "The bytes of one usage of a matrix, for a product.")
      .def(py::init([](const Buffers& bytes, const std::string& usage, bool over_rows) {
             if (!bytes.has(usage_of(usage))) value_error("a matrix has no ", usage, " bytes");
             return operand_of(bytes, usage_of(usage), over_rows);
           }),
           py::arg("bytes"), py::arg("usage"), py::arg("over_rows"));
  py::class_<TensorCoreOperand>(
      module, "TensorCoreOperand",
      "An operand as torch._scaled_mm takes it: bindings/matmul/tensor_core_operand.hpp.")
      .def_readonly("codes", &TensorCoreOperand::codes)
      .def_readonly("scales", &TensorCoreOperand::scales)
      .def_property_readonly(
          "spanning_scale", [](const TensorCoreOperand& operand) -> OptionalTensor {
            if (!operand.spanning_scale) return std::nullopt;
            return operand.spanning_scale->stored.mul(operand.spanning_scale->multiplier);
          });
  module.def(
      "swizzled", &swizzled, py::arg("scales"),
      "Scales [rows, groups] of one byte in the order of sm_100's tensor cores: 1-D, padded.");
  module.def("tensor_core_operand", &tensor_core_operand, py::arg("operand"), py::arg("kind"),
             "An operand for a kind of product (a Product's number).");
  module.def("has_tensor_cores", &has_tensor_cores, py::arg("device"), py::arg("kind"));
  module.def("suits_tensor_cores", &suits_tensor_cores, py::arg("a"), py::arg("b"), py::arg("kind"),
             "Whether the tensor cores of a kind take a @ b.T, of operands of these shapes.");
}

}  // namespace narrowcast
