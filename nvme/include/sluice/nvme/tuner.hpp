#pragma once
// Tuner: which settings of the I/O engine to measure next, and which of them are best. It measures
// nothing itself.
//
// A drive's speed moves by more between two seconds than two good settings differ, so settings are
// compared within rounds: each round measures the settings that are still in, in another order, the
// better half goes on, and the last few are measured again and again. Those that are compared have
// shared every round, so what moved between rounds cancels.
//
// The setting that is used without a tuner is kept in every round, and stays unless another one is
// clearly better in the last rounds: there every setting but that one is there because it has been
// lucky before, so earlier rounds would flatter them.
//
// Thread-compatible: callers synchronise.

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "sluice/nvme/paired_ratios.hpp"

namespace sluice::nvme {

struct TuneSetting {
  std::uint32_t block_bytes = 0;
  unsigned depth = 0;
  std::uint64_t bytes_in_flight() const { return std::uint64_t{block_bytes} * depth; }
  bool operator==(const TuneSetting&) const = default;
};

// Bytes per second of the patterns of the same names (LoadPattern).
struct TuneRates {
  double read = 0;
  double write = 0;
  double mixed = 0;
  double mean() const;  // geometric, since a step does all three
};

struct TunePoint {
  TuneSetting setting;
  TuneRates rates;  // geometric means over the rounds
  int rounds = 0;
  // Of each of the last rounds, in their order.
  std::vector<double> last_means;
};

struct TuneChoice {
  TunePoint point;  // what to use
  // How the best of the others compares with the usual setting in the last rounds: ratios of their
  // scores. Median 0: there was no usual setting, no other one, or no time for kLeastPairs rounds.
  TuneSetting compared;
  RatioSummary gain;
};

// Blocks of 64 KiB to 8 MiB and depths of 1 to 128, powers of two, with at most 64 MiB in flight.
std::vector<TuneSetting> tune_settings();

class Tuner {
 public:
  // `usual` is the setting that stays unless another one is clearly better, measured first.
  // `seed` of the order within rounds. Throws InvalidArgument when there are no settings, or
  // `usual` is not one of them.
  explicit Tuner(const std::vector<TuneSetting>& settings,
                 std::optional<TuneSetting> usual = std::nullopt, std::uint64_t seed = 1);

  // Rounds at the end of a whole run, all of the same settings.
  static constexpr int kLastRounds = 8;
  // Fewer pairs say nothing of their noise.
  static constexpr std::size_t kLeastPairs = 4;
  std::size_t planned_trials() const;
  bool done() const { return round_ >= halving_rounds_ + kLastRounds; }
  // What to measure next; not to be called when done().
  TuneSetting next() const;
  // The rates of next(); all above 0, else InvalidArgument.
  void record(const TuneRates& rates);

  std::size_t recorded_trials() const { return trials_; }
  const std::vector<TunePoint>& points() const { return points_; }
  // The usual setting, unless others are better by more than 2 % and by more than the noise; of
  // those, or without a usual setting of all that have been in most rounds, the one with the least
  // in flight that is within 2 % of the best. Throws InvalidArgument before the first record.
  TuneChoice choose() const;

 private:
  static constexpr std::size_t kFinalists = 6;
  static constexpr std::size_t kNone = ~std::size_t{0};
  void begin_round();
  TuneChoice choose_beside_usual() const;
  TuneChoice choose_of_most_rounds() const;

  std::vector<TunePoint> points_;
  std::size_t usual_ = kNone;    // index of points_
  std::vector<std::size_t> in_;  // indices of points_, in the order of this round
  std::size_t at_ = 0;           // of in_, the next one
  int round_ = 0;
  int halving_rounds_ = 0;  // before the last ones
  std::size_t trials_ = 0;
  std::mt19937_64 random_;
};

}  // namespace sluice::nvme
