// The table that the plugin int8_block32 exports.
// Made from spec/int8_block32.toml; edit that and run `make regenerate`.
#include "generated/int8_block32/format.hpp"
#include "generated/int8_block32/views.hpp"
#include "runtime/plugin/export.hpp"

namespace narrowcast::int8_block32 {

NC_DECLARE_MACHINES

namespace {

constexpr nc_format kFormat = {
    .name = "int8_block32",
    .summary = "8-bit integers in 32 x 32 blocks under fp32 scales.",
    .reference = "Jetfire: INT8 Data Flow and Per-Block Quantization, arXiv:2403.12422",
    .element = "int8",
    .packing = "dense",
    .scale = "f32",
    .tensor_scale = nullptr,
    .scale_rule = "exact",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 32,
    .shard_row_step = 32,
    .bits_per_element = 8.03125,
    .wire_bits_per_element = 8.03125,
    .cuts = {kCuts[0], kCuts[1], kCuts[2], kCuts[3]},
};

const nc_machine* variant(const char* name);

const PluginTable& table() {
  static const PluginTable kTable(kFormat, &baseline::cpu_machine(), NC_AVX_MACHINES,
                                  NC_CUDA_MACHINE, variant);
  return kTable;
}

const nc_machine* variant(const char* name) { return table().variant(name); }

}  // namespace
}  // namespace narrowcast::int8_block32

NC_EXPORT const nc_plugin* narrowcast_plugin() { return narrowcast::int8_block32::table().get(); }
