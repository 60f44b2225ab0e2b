// What a spec file says, and where it says it. Nothing here is derived; see plan.hpp for that.
//
// A Format is made by read() and never changes. A rule may ask a field only if it is known(): an
// unreadable value has been reported, and a second complaint about its consequences would help
// nobody.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "codegen/vocabulary.hpp"

namespace narrowcast::codegen {

// A stretch of one line of the spec, counted in characters from 1. Line 0 stands for the file as a
// whole.
struct Span {
  int line = 0, column = 0, length = 0;
};

enum class Origin {
  kDefault,    // left out; the value is the vocabulary's default, the span that of the table that
               // could have had it
  kGiven,      // written in the spec
  kUnreadable  // written, or required, but wrong: a diagnostic has been made
};

template <class Value>
struct Field {
  Value value{};
  Span at{};
  Origin origin = Origin::kDefault;

  bool given() const { return origin == Origin::kGiven; }
  bool known() const { return origin != Origin::kUnreadable; }
};

// Rows and columns of the matrix in its own coordinates: elements of a block, or elements to a
// stored scale.
struct Block {
  int64_t rows = 0, columns = 0;
  bool operator==(const Block&) const = default;
  bool spans_tensor() const { return rows == 0; }
};
inline constexpr Block kTensorBlock{
    0, 0};  // what `block = "tensor"` reads as; no pair of numbers does

struct Usage {
  Field<Block> block;
  Field<Block> scale_per;  // default: the block
  Field<Block> scale_pad;  // in coordinates of the stored scale matrix; default: 1 x 1
  Field<bool> transposed;
  Field<bool> scale_transposed;  // default: as transposed
};

// What linear layers multiply weights of the format by.
struct Products {
  Field<std::string> input, gradient;  // names of formats, or kSelf
  Field<Rounding> gradient_rounding;
};
inline constexpr std::string_view kSelf = "self";

// Of a format that stores an optimizer's state.
struct State {
  Field<int64_t> block;                          // elements of a row
  Field<int64_t> signed_root, nonnegative_root;  // of a value, of which a code is the whole number
};

struct Format {
  Field<std::string> name, summary, reference;
  Field<int64_t> vocabulary;
  Field<Kind> kind;
  State state;  // if it is of that kind; else all that follows
  Field<Element> element;
  Field<Packing> packing;
  Field<ScaleType> scale;
  Field<TensorScale> tensor_scale;
  Usage rowwise, columnwise;
  Field<Amax> amax;
  Field<ScaleRule> rule;
  bool has_products = false;
  Products products;  // if it has_products
};

template <class... Fields>
bool known(const Fields&... fields) {
  return (fields.known() && ...);
}

}  // namespace narrowcast::codegen
