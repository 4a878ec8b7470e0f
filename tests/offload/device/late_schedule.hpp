#pragma once
// LateSchedule: the choices of a LateDevice's seed: which of the events that can happen happens,
// and whether it first waits until every thread of the process sleeps.

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace sluice::offload::test {

struct LateOptions {
  std::uint64_t memory_bytes = 16U << 20U;  // one arena, as a GPU's
  std::uint64_t seed = 0;
  // Compute work goes on only when nothing else can: every copy that may run has run, and every
  // thread sleeps.
  bool compute_last = false;
};

// Confined to the device's thread.
class LateSchedule {
 public:
  static constexpr std::size_t kEvents = 6;

  explicit LateSchedule(const LateOptions& options)
      : random_(options.seed), compute_last_(options.compute_last) {
    patience_percent_ = compute_last_ ? 100 : std::array{0U, 30U, 100U}[random_() % 3];
    // Some seeds have a slow copy lane, or slow compute work, and some none.
    for (unsigned& weight : weights_) weight = std::array{1U, 8U, 64U}[random_() % 3];
  }
  bool waits_for_sleep() { return random_() % 100 < patience_percent_; }
  bool compute_last() const { return compute_last_; }
  // One of the events that can happen.
  std::size_t choose(const std::vector<std::size_t>& possible) {
    std::size_t sum = 0;
    for (const std::size_t event : possible) sum += weights_[event];
    std::size_t left = random_() % sum;
    for (const std::size_t event : possible) {
      if (left < weights_[event]) return event;
      left -= weights_[event];
    }
    return possible.back();
  }

 private:
  std::mt19937_64 random_;
  const bool compute_last_;
  unsigned patience_percent_ = 0;
  std::array<unsigned, kEvents> weights_{};
};

}  // namespace sluice::offload::test
