#include "bindings/units.hpp"

#include <ATen/ops/_scaled_mm.h>

#include <array>
#include <atomic>

#include "bindings/launch.hpp"

namespace narrowcast {
namespace {

// 10 * major + minor; 0 of the CPU.
int capability(at::Device device) {
  static std::array<std::atomic<int>, 64> known{};
  if (!device.is_cuda() || device.index() >= std::ssize(known)) return 0;
  std::atomic<int>& found = known[device.index()];
  if (found == 0) {
    const py::gil_scoped_acquire python;
    const auto [major, minor] = py::cast<std::pair<int, int>>(
        py::module_::import("torch.cuda").attr("get_device_capability")(device.index()));
    found = 10 * major + minor;
  }
  return found;
}

at::ScalarType float8(const Operand& operand) {
  return std::string_view(operand.facts().element) == "e5m2" ? at::kFloat8_e5m2
                                                             : at::kFloat8_e4m3fn;
}

// Data as stored, [kept, summed].
at::Tensor codes(const Operand& operand) { return operand.data.view(float8(operand)); }

// Scales of groups of 128 along the summed dimension, [kept, groups], or of blocks, [groups, kept /
// 128]; without padding, and the groups behind one another in memory where the unit wants that.
at::Tensor group_scales(const Operand& operand) { return operand.scale.t(); }
at::Tensor block_scales(const Operand& operand) {
  return operand.scale.t().narrow(0, 0, operand.summed() / 128);
}

bool suits(const Operand& a, const Operand& b, int32_t kind) {
  const bool whole_vectors = a.summed() % 16 == 0 && b.kept() % 16 == 0;
  if (kind == NC_TENSOR_BY_TENSOR) return whole_vectors;
  if (!whole_vectors || a.kept() % 4 != 0) return false;
  return kind == NC_1X128_BY_1X128 || a.summed() % 512 == 0;
}

// With the columnwise bytes, if it is summed over rows and has rowwise ones.
Operand in_order(const Operand& operand) {
  if (operand.over_rows == (operand.usage == 1)) return operand;
  const nc_machine& machine = operand.plugin->machine(operand.device());
  Operand derived = operand;
  derived.usage = 1;
  const Bytes::Buffers made = allocate_buffers(*operand.plugin, {operand.rows, operand.columns},
                                               false, true, operand.device());
  derived.data = *made[NC_COLUMNWISE_DATA];
  derived.scale = *made[NC_COLUMNWISE_SCALE];
  nc_tensor entry = operand.entry();
  for (const int index : buffers_of(1)) entry.buffer[index] = made[index]->mutable_data_ptr();
  MatrixTable table(machine, operand.device());
  table.assign({entry});
  table.run(machine.derive_columnwise, "deriving columnwise");
  return derived;
}

}  // namespace

bool has_unit(at::Device device, int32_t kind) {
  switch (kind) {
    case NC_TENSOR_BY_TENSOR:
      return capability(device) >= 89;
    case NC_1X128_BY_128X128:
    case NC_1X128_BY_1X128:
      return capability(device) == 90;
    default:
      return false;
  }
}

at::Tensor unit_product(const Operand& a, const Operand& b, int32_t kind, bool fast,
                        at::ScalarType dtype) {
  if (!has_unit(a.device(), kind) || !suits(a, b, kind)) return {};
  const Operand right = in_order(b);
  at::Tensor a_scale = a.scale, b_scale = right.scale;
  if (kind != NC_TENSOR_BY_TENSOR) {
    a_scale = group_scales(a);
    b_scale = kind == NC_1X128_BY_128X128 ? block_scales(right) : right.scale;
  }
  // Units of groups give back bfloat16 or float32.
  const bool direct = kind == NC_TENSOR_BY_TENSOR || dtype != at::kHalf;
  const at::Tensor product =
      at::_scaled_mm(codes(a), codes(right).t(), a_scale, b_scale, {}, {},
                     direct ? dtype : at::kFloat, fast && kind == NC_TENSOR_BY_TENSOR);
  return direct ? product : product.to(dtype);
}

}  // namespace narrowcast
