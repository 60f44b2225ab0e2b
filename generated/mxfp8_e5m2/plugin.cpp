// The table that the plugin mxfp8_e5m2 exports.
// Made from spec/mxfp8_e5m2.toml; edit that and run `make regenerate`.
#include "generated/mxfp8_e5m2/format.hpp"
#include "generated/mxfp8_e5m2/views.hpp"
#include "runtime/plugin/export.hpp"

namespace narrowcast::mxfp8_e5m2 {

NC_DECLARE_MACHINES

namespace {

constexpr nc_format kFormat = {
    .name = "mxfp8_e5m2",
    .summary = "8-bit floats of wide range in groups of 32 under a power-of-two scale.",
    .reference = "OCP Microscaling Formats (MX) Specification 1.0",
    .element = "e5m2",
    .packing = "dense",
    .scale = "e8m0",
    .tensor_scale = nullptr,
    .scale_rule = "rceil",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 32,
    .shard_row_step = 32,
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
}  // namespace narrowcast::mxfp8_e5m2

NC_EXPORT const nc_plugin* narrowcast_plugin() { return narrowcast::mxfp8_e5m2::table().get(); }
