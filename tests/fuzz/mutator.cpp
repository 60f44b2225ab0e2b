#include "mutator.hpp"

#include <algorithm>
#include <iterator>

#include "tokens.hpp"

namespace narrowcast::fuzz {
namespace {

// A little more than a spec may have.
constexpr size_t kMostBytes = 70'000;

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> kAll(std::begin(kTokens), std::end(kTokens));
  return kAll;
}

struct Range {
  size_t begin, length;
};

Range any_range(const std::string& text, size_t most, Random& random) {
  const size_t begin = random.below(text.size() + 1);
  return {begin, random.below(std::min(most, text.size() - begin) + 1)};
}

std::vector<Range> lines_of(const std::string& text) {
  std::vector<Range> lines;
  for (size_t begin = 0; begin < text.size(); begin += lines.back().length) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1);
    lines.push_back({begin, end + 1 - begin});
  }
  return lines;
}

Range any_line(const std::string& text, Random& random) {
  const std::vector<Range> lines = lines_of(text);
  return lines.empty() ? Range{0, 0} : random.any_of(lines);
}

struct Value {
  std::string key;
  Range range;  // what stands between the "=" and the end of the line, without the space around
};

std::vector<Value> values_of(const std::string& text) {
  std::vector<Value> values;
  for (const Range& line : lines_of(text)) {
    const size_t end = std::min(text.find_first_of("#\n", line.begin), line.begin + line.length);
    const size_t equals = text.find('=', line.begin);
    if (equals >= end) continue;
    const size_t first = text.find_first_not_of(' ', equals + 1);
    if (first >= end) continue;
    const std::string key =
        text.substr(line.begin, text.find_first_of(" =", line.begin) - line.begin);
    values.push_back({key, {first, text.find_last_not_of(' ', end - 1) + 1 - first}});
  }
  return values;
}

// So many copies, most often few.
size_t any_count(Random& random) { return 1 + random.below(size_t{1} << random.below(16)); }

void repeat(std::string& text, Range range, Random& random) {
  const std::string part = text.substr(range.begin, range.length);
  std::string copies;
  for (size_t i = any_count(random); i > 0 && copies.size() + text.size() < kMostBytes; --i)
    copies += part;
  text.insert(range.begin, copies);
}

}  // namespace

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Mutator::Mutator(std::vector<std::string> corpus) : corpus_(std::move(corpus)), values_(tokens()) {
  for (const std::string& text : corpus_) {
    for (const Value& value : values_of(text)) {
      values_.push_back(text.substr(value.range.begin, value.range.length));
      values_of_key_[value.key].push_back(values_.back());
    }
  }
}

std::string Mutator::input(uint64_t seed, uint64_t number) const {
  Random random(Random(seed).next() + number);
  std::string text = random.any_of(corpus_);
  // Every other input has other values alone, so that many are specs without errors.
  const bool only_values = random.one_in(2);
  for (size_t i = 1 + random.below(5); i > 0; --i)
    only_values ? change_value(text, random) : mutate(text, random);
  if (text.size() > kMostBytes) text.resize(kMostBytes);
  return text;
}

void Mutator::mutate(std::string& text, Random& random) const {
  const size_t place = random.below(text.size() + 1);
  switch (random.below(11)) {
    case 0:  // a bit, or a byte of zeros
      if (place == text.size()) break;
      text[place] =
          random.one_in(8) ? '\0' : static_cast<char>(text[place] ^ (1 << random.below(8)));
      break;
    case 1:  // a token, put in
      text.insert(place, random.any_of(tokens()));
      break;
    case 2: {  // a token in the place of something
      const Range range = any_range(text, 8, random);
      text.replace(range.begin, range.length, random.any_of(tokens()));
      break;
    }
    case 3: {  // something less
      const Range range = any_range(text, random.one_in(8) ? text.size() : 8, random);
      text.erase(range.begin, range.length);
      break;
    }
    case 4: {  // something again and again
      repeat(text, any_range(text, 40, random), random);
      break;
    }
    case 5: {  // a token again and again
      const std::string& token = random.any_of(tokens());
      text.insert(place, token);
      repeat(text, {place, token.size()}, random);
      break;
    }
    case 6: {  // a line elsewhere
      const Range range = any_line(text, random);
      const std::string line = text.substr(range.begin, range.length);
      text.erase(range.begin, range.length);
      text.insert(any_line(text, random).begin, line);
      break;
    }
    case 7: {  // a line of another spec
      const std::string& other = random.any_of(corpus_);
      const Range range = any_line(other, random);
      text.insert(any_line(text, random).begin, other.substr(range.begin, range.length));
      break;
    }
    case 8: {  // the rest of another spec
      const std::string& other = random.any_of(corpus_);
      text.replace(place, std::string::npos, other.substr(random.below(other.size() + 1)));
      break;
    }
    case 9: {  // any value in the place of another
      const std::vector<Value> values = values_of(text);
      if (values.empty()) break;
      const Range range = random.any_of(values).range;
      text.replace(range.begin, range.length, random.any_of(values_));
      break;
    }
    default:
      change_value(text, random);
  }
}

// To one that the same key has elsewhere.
void Mutator::change_value(std::string& text, Random& random) const {
  const std::vector<Value> values = values_of(text);
  if (values.empty()) return;
  const Value& value = random.any_of(values);
  const auto others = values_of_key_.find(value.key);
  if (others == values_of_key_.end()) return;
  text.replace(value.range.begin, value.range.length, random.any_of(others->second));
}

}  // namespace narrowcast::fuzz
