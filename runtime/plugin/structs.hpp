// How this compiler lays out the structs of the C table: what a plugin and the library that loads
// it compare, so that a change without a new version is refused and cannot overrun memory.
#pragma once

#include <cstddef>
#include <string_view>

#include "runtime/plugin/table.h"

namespace narrowcast {

struct Field {
  std::string_view name;
  size_t offset, size;
};

// FNV-1a.
struct Digest {
  uint64_t value = 0xcbf29ce484222325u;
  constexpr void add(uint64_t number) { value = (value ^ number) * 0x100000001b3u; }
  constexpr void add(std::string_view text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
};

template <class Struct, class Type>
consteval size_t size_of(Type Struct::*) {
  return sizeof(Type);  // NOLINT(bugprone-sizeof-expression): of pointers too
}

// The fields must be all of the struct's, in order: each begins where the one before it ends.
template <size_t n>
consteval nc_struct described(const char* name, size_t size, const Field (&fields)[n]) {
  Digest digest;
  size_t end = 0;
  for (const Field& field : fields) {
    if (field.offset != end) throw "a field is not listed, or there is padding";
    end += field.size;
    digest.add(field.name);
    digest.add(field.offset);
    digest.add(field.size);
  }
  if (end != size) throw "the last fields are not listed, or there is padding";
  return {name, size, digest.value};
}

// {#field, offsetof, size_of} of each field: a macro that names its successor, which every round of
// NC_ROUNDS expands once more.
#define NC_FIELDS(type, field, ...) \
  {#field, offsetof(type, field),   \
   size_of(&type::field)} __VA_OPT__(, NC_MORE_FIELDS NC_PARENTHESES(type, __VA_ARGS__))
#define NC_MORE_FIELDS() NC_FIELDS
#define NC_PARENTHESES ()
#define NC_ROUNDS(...) NC_MANY(NC_MANY(NC_MANY(NC_MANY(NC_MANY(__VA_ARGS__)))))
#define NC_MANY(...) NC_ONCE(NC_ONCE(NC_ONCE(__VA_ARGS__)))
#define NC_ONCE(...) __VA_ARGS__
#define NC_STRUCT(type, ...) \
  described(#type, sizeof(type), {NC_ROUNDS(NC_FIELDS(type, __VA_ARGS__))})

inline constexpr nc_struct kStructs[] = {
    NC_STRUCT(nc_layout, block_rows, block_columns, scale_per_rows, scale_per_columns,
              scale_pad_rows, scale_pad_columns, transposed, scale_transposed, element_bits,
              scale_bytes),
    NC_STRUCT(nc_rule, exact, reserved, text),
    NC_STRUCT(nc_product, kind, reserved, reason),
    NC_STRUCT(nc_products, input, gradient, product, stochastic_gradient),
    NC_STRUCT(nc_format, name, summary, reference, element, packing, scale, scale_dtype,
              tensor_scale, scale_rule, amax, rowwise, columnwise, columnwise_derived, tensor_amax,
              row_step, shard_row_step, bits_per_element, wire_bits_per_element, rules, products,
              tensor_range, significant_bits),
    NC_STRUCT(nc_history, present, next, amax),
    NC_STRUCT(nc_seam, block_rows, block_columns, row, column, rows, columns, slot),
    NC_STRUCT(nc_seams, blocks, begin, end, slot),
    NC_STRUCT(nc_tensor, rows, columns, first_tile, before, after, first_row, end_row, seams, value,
              exp_avg, exp_avg_sq, parameter, buffer, amax, history, seed, step, first, value_dtype,
              state_dtype),
    NC_STRUCT(nc_step, t, grad, grad_dtype, decoupled, beta1, beta2, one_minus_beta1,
              one_minus_beta2, rcp_bias1, rcp_bias2, learning_rate, epsilon, weight_decay,
              grad_multiplier, scaled, reserved),
    NC_STRUCT(nc_launch, tensors, steps, amax, verdict, found_inf, count, tiles, source_bf16,
              stochastic, host_tables, keep_nonfinite, exchange, stream, parallel_for),
    NC_STRUCT(nc_segment, buffer, payload, begin, end, in_place, as_stored),
    NC_STRUCT(nc_route, rows, columns, shard_rows, world, phase, payloads, segments, reserved,
              payload_bytes, segment),
    NC_STRUCT(nc_shipment, route, own_rows, buffer, payload),
    NC_STRUCT(nc_transfer, shipments, count, stream, parallel_for),
    NC_STRUCT(nc_machine, tile_rows, tile_columns, step_rows, decode_tile_rows, derive_tile_rows,
              reduce_amax, cast, collect, update, update_amax, start_history, record_amax,
              derive_columnwise, dequantize_rowwise, dequantize_columnwise, pack, unpack),
    NC_STRUCT(nc_struct, name, size, digest),
    NC_STRUCT(nc_plugin, magic, version, size, struct_count, structs, digest, format, cpu, cuda,
              cpu_variants, cpu_variant, route),
};

#undef NC_STRUCT

inline constexpr uint64_t kStructsDigest = [] {
  Digest digest;
  for (const nc_struct& one : kStructs) digest.add(one.digest);
  return digest.value;
}();

}  // namespace narrowcast
