// Specs as nobody writes them: those of a corpus, changed at random.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace narrowcast::fuzz {

// Random numbers that are the same everywhere, for the same seed (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // From 0 up to, not including, `end`, which is at least 1.
  size_t below(size_t end) { return static_cast<size_t>(next() % end); }
  bool one_in(size_t n) { return below(n) == 0; }

  template <class Item>
  const Item& any_of(const std::vector<Item>& items) {
    return items[below(items.size())];
  }

 private:
  uint64_t state_;
};

class Mutator {
 public:
  // `corpus`: the texts that are changed and crossed; at least one.
  explicit Mutator(std::vector<std::string> corpus);

  // An input is a function of the seed, its number and the corpus alone, so a failure can be had
  // again.
  std::string input(uint64_t seed, uint64_t number) const;

 private:
  void mutate(std::string& text, Random& random) const;

  void change_value(std::string& text, Random& random) const;

  std::vector<std::string> corpus_;
  std::vector<std::string> values_;  // all that stands behind a "=" in the corpus, and tokens
  std::map<std::string, std::vector<std::string>> values_of_key_;
};

}  // namespace narrowcast::fuzz
