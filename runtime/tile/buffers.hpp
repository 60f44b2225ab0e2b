// The buffers of a quantized tensor, typed by what their bytes mean, and what a cast needs from
// outside its tile. `Format` is a generated struct: its Element and ScaleType, and its layouts
// kRowwise and kColumnwise.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/rounding.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

enum class Usage { kRowwise, kColumnwise };

template <class ElementType, Layout kStoredAs, Usage kOf>
struct DataBuffer {
  using Element = ElementType;
  static constexpr Layout kLayout = kStoredAs;
  static constexpr Usage kUsage = kOf;
  uint8_t* bytes;
};

template <class StoredType, Layout kStoredAs, Usage kOf>
struct ScaleBuffer {
  using Stored = StoredType;
  static constexpr Layout kLayout = kStoredAs;
  static constexpr Usage kUsage = kOf;
  Stored* scales;
};

template <class Format>
struct Buffers {
  using Element = typename Format::Element;
  using Stored = typename Format::ScaleType::Stored;

  DataBuffer<Element, Format::kRowwise, Usage::kRowwise> rowwise_data;
  ScaleBuffer<Stored, Format::kRowwise, Usage::kRowwise> rowwise_scale;
  DataBuffer<Element, Format::kColumnwise, Usage::kColumnwise> columnwise_data;
  ScaleBuffer<Stored, Format::kColumnwise, Usage::kColumnwise> columnwise_scale;
  // Which usages are asked for: an empty matrix may have a scale, but no data.
  bool rowwise, columnwise;

  NC_EVERYWHERE explicit Buffers(const nc_tensor& t)
      : rowwise_data{static_cast<uint8_t*>(t.buffer[NC_ROWWISE_DATA])},
        rowwise_scale{static_cast<Stored*>(t.buffer[NC_ROWWISE_SCALE])},
        columnwise_data{static_cast<uint8_t*>(t.buffer[NC_COLUMNWISE_DATA])},
        columnwise_scale{static_cast<Stored*>(t.buffer[NC_COLUMNWISE_SCALE])},
        rowwise(t.buffer[NC_ROWWISE_SCALE] != nullptr),
        columnwise(t.buffer[NC_COLUMNWISE_SCALE] != nullptr) {}
};

template <class Rounding = Nearest>
struct Inputs {
  float tensor_amax;     // of the whole tensor, all shards; 0 where no scale spans the tensor
  float multiplier = 1;  // of encoding, where earlier steps have decided it
  Rounding rounding{};
};

}  // namespace narrowcast::inline NC_VARIANT
