// The table that the plugin fp8_e5m2 exports.
// Made from spec/fp8_e5m2.toml; edit that and run `make regenerate`.
#include "generated/fp8_e5m2/format.hpp"
#include "generated/fp8_e5m2/views.hpp"
#include "runtime/plugin/export.hpp"

namespace narrowcast::fp8_e5m2 {

NC_DECLARE_MACHINES

namespace {

constexpr nc_format kFormat = {
    .name = "fp8_e5m2",
    .summary = "8-bit floats of wide range under one scale for the tensor.",
    .reference = "FP8 Formats for Deep Learning, arXiv:2209.05433",
    .element = "e5m2",
    .packing = "dense",
    .scale = "f32",
    .tensor_scale = nullptr,
    .scale_rule = "exact",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 1,
    .shard_row_step = 1,
    .bits_per_element = 8,
    .wire_bits_per_element = 8,
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
}  // namespace narrowcast::fp8_e5m2

NC_EXPORT const nc_plugin* narrowcast_plugin() { return narrowcast::fp8_e5m2::table().get(); }
