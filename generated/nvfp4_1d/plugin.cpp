// The table that the plugin nvfp4_1d exports.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#include "generated/nvfp4_1d/format.hpp"
#include "generated/nvfp4_1d/views.hpp"
#include "runtime/plugin/export.hpp"

namespace narrowcast::nvfp4_1d {

NC_DECLARE_MACHINES

namespace {

constexpr nc_format kFormat = {
    .name = "nvfp4_1d",
    .summary = "4-bit floats in groups of 16 under two levels of scales.",
    .reference = "NVIDIA, Pretraining Large Language Models with NVFP4, arXiv:2509.25149",
    .element = "e2m1",
    .packing = "dense",
    .scale = "e4m3",
    .tensor_scale = "f32",
    .scale_rule = "nearest_even",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 16,
    .shard_row_step = 16,
    .bits_per_element = 4.5,
    .wire_bits_per_element = 4.5,
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
}  // namespace narrowcast::nvfp4_1d

NC_EXPORT const nc_plugin* narrowcast_plugin() { return narrowcast::nvfp4_1d::table().get(); }
