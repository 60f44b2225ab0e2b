// Work on all of this machine's threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace narrowcast::test {

inline constexpr int64_t kLeastElements = 1 << 16;  // that are worth a thread

// Runs body(begin, end) over ranges that cover [0, count), none shorter than `least` if there are
// several.
template <class Body>
void in_ranges(int64_t count, int64_t least, const Body& body) {
  const int64_t most = std::max(1u, std::thread::hardware_concurrency());
  const int64_t ranges = std::clamp<int64_t>(count / least, 1, most);
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < ranges; ++i)
    threads.emplace_back([=, &body] { body(count * i / ranges, count * (i + 1) / ranges); });
  body(0, count / ranges);
  for (std::thread& thread : threads) thread.join();
}

// As a launch's parallel_for.
inline void on_all_threads(int64_t count, void (*body)(void*, int64_t, int64_t), void* context) {
  constexpr int64_t kTiles = 8;
  in_ranges(count, kTiles, [=](int64_t begin, int64_t end) { body(context, begin, end); });
}

}  // namespace narrowcast::test
