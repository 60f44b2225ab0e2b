// The table that the plugin fp8_block1x128 exports.
// Made from spec/fp8_block1x128.toml; edit that and run `make regenerate`.
#include "generated/fp8_block1x128/format.hpp"
#include "generated/fp8_block1x128/views.hpp"
#include "runtime/plugin/export.hpp"

namespace narrowcast::fp8_block1x128 {

NC_DECLARE_MACHINES

namespace {

constexpr nc_format kFormat = {
    .name = "fp8_block1x128",
    .summary = "8-bit floats in groups of 128 under fp32 power-of-two scales.",
    .reference = "DeepSeek-V3 Technical Report, arXiv:2412.19437",
    .element = "e4m3",
    .packing = "dense",
    .scale = "f32",
    .tensor_scale = nullptr,
    .scale_rule = "rceil",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 128,
    .shard_row_step = 128,
    .bits_per_element = 8.25,
    .wire_bits_per_element = 8.25,
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
}  // namespace narrowcast::fp8_block1x128

NC_EXPORT const nc_plugin* narrowcast_plugin() { return narrowcast::fp8_block1x128::table().get(); }
