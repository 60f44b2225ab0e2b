#include "runtime/plugin/same_facts.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace narrowcast {
namespace {

bool same_text(const char* one, const char* other) {
  if (one == nullptr || other == nullptr) return one == other;
  return std::strcmp(one, other) == 0;
}

// Takes the texts out of a format, so that the bytes of what remains can be compared.
std::vector<const char*> take_texts(nc_format& format) {
  std::vector<const char**> places{
      &format.name,       &format.summary, &format.reference,      &format.element,
      &format.packing,    &format.scale,   &format.scale_dtype,    &format.tensor_scale,
      &format.scale_rule, &format.amax,    &format.products.input, &format.products.gradient};
  for (nc_rule& rule : format.rules) places.push_back(&rule.text);
  for (nc_product& product : format.products.product) places.push_back(&product.reason);
  std::vector<const char*> texts;
  texts.reserve(places.size());
  for (const char** place : places) texts.push_back(std::exchange(*place, nullptr));
  return texts;
}

// The structs of the table have no holes.
std::array<char, sizeof(nc_format)> bytes_of(const nc_format& format) {
  return std::bit_cast<std::array<char, sizeof(nc_format)>>(format);
}

bool same_tiles(const nc_machine* one, const nc_machine* other) {
  if (one == nullptr || other == nullptr) return true;
  const auto tiles = [](const nc_machine& machine) {
    return std::array{machine.tile_rows,           machine.tile_columns,
                      machine.step_rows,           machine.decode_tile_rows[0],
                      machine.decode_tile_rows[1], machine.derive_tile_rows};
  };
  return tiles(*one) == tiles(*other);
}

std::vector<std::string_view> listed(const char* const* names) {
  std::vector<std::string_view> found;
  for (; *names != nullptr; ++names) found.emplace_back(*names);
  return found;
}

}  // namespace

bool same_format(const nc_plugin& one, const nc_plugin& other) {
  nc_format a = *one.format, b = *other.format;
  return std::ranges::equal(take_texts(a), take_texts(b), same_text) &&
         bytes_of(a) == bytes_of(b) && same_tiles(one.cpu, other.cpu) &&
         same_tiles(one.cuda, other.cuda);
}

bool same_rule(const nc_update_rule& one, const nc_update_rule& other) {
  const auto states = listed(one.states);
  if (states != listed(other.states) || listed(one.options) != listed(other.options)) return false;
  if (one.nonnegative == nullptr || other.nonnegative == nullptr)
    return one.nonnegative == other.nonnegative;
  return std::equal(one.nonnegative, one.nonnegative + states.size(), other.nonnegative);
}

}  // namespace narrowcast
