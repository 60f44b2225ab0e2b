// Every claim about single floats, for all 2^32 of them, on every core: `make exhaustive`.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/support/claims.hpp"

namespace narrowcast::test {
namespace {

// The number of wrong patterns; pieces are taken by whichever thread is free.
int64_t wrong_of_all(const Claim& claim, unsigned threads) {
  constexpr uint32_t kPieces = 256, kPiece = (1u << 31) / (kPieces / 2);
  std::atomic<uint32_t> next = 0;
  std::atomic<int64_t> wrong = 0;
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      for (uint32_t piece = next++; piece < kPieces; piece = next++) {
        wrong += claim.wrong(piece * kPiece, piece * kPiece + (kPiece - 1));
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return wrong;
}

int run() {
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  int false_claims = 0;
  for (const Claim& claim : all_claims()) {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t wrong = wrong_of_all(claim, threads);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    std::printf("%-44s %10lld wrong of 2^32, %5.1f s\n", claim.name.c_str(),
                static_cast<long long>(wrong), taken.count());
    std::fflush(stdout);
    false_claims += wrong != 0;
  }
  std::printf(false_claims == 0 ? "every claim holds\n" : "%d claims are false\n", false_claims);
  return false_claims != 0;
}

}  // namespace
}  // namespace narrowcast::test

int main() { return narrowcast::test::run(); }
