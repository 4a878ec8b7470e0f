#pragma once
// Tuner: which settings of the I/O engine to measure next, and which of them are best. It measures
// nothing itself.
//
// A drive's speed moves by more between two seconds than two good settings differ, so settings are
// compared within rounds: each round measures the settings that are still in, in another order, the
// better half goes on, and the last few are measured again and again. Those that are compared have
// shared every round, so what moved between rounds cancels.
//
// Thread-compatible: callers synchronise.

#include <cstdint>
#include <random>
#include <vector>

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
};

struct TunePoint {
  TuneSetting setting;
  TuneRates rates;  // geometric means over the rounds
  int rounds = 0;
  // Mean of the logarithms of the three rates: their geometric mean, since a step does all three.
  double score() const;
};

// Blocks of 64 KiB to 8 MiB and depths of 1 to 128, powers of two, with at most 64 MiB in flight.
std::vector<TuneSetting> tune_settings();

class Tuner {
 public:
  // Throws InvalidArgument when there are no settings. `seed` of the order within rounds.
  explicit Tuner(const std::vector<TuneSetting>& settings, std::uint64_t seed = 1);

  // Of one setting's measurements in all rounds of a whole run.
  static constexpr int kFinalRounds = 5;
  std::size_t planned_trials() const;
  bool done() const { return round_ >= planned_rounds_; }
  // What to measure next; not to be called when done().
  TuneSetting next() const;
  // The rates of next(); all above 0, else InvalidArgument.
  void record(const TuneRates& rates);

  std::size_t recorded_trials() const { return trials_; }
  const std::vector<TunePoint>& points() const { return points_; }
  // Of those that have been in most rounds: the one with the least in flight that is within 2 % of
  // the best. Throws InvalidArgument before the first record.
  const TunePoint& best() const;

 private:
  static constexpr std::size_t kFinalists = 6;
  void begin_round();

  std::vector<TunePoint> points_;
  std::vector<std::size_t> in_;  // indices of points_, in the order of this round
  std::size_t at_ = 0;           // of in_, the next one
  int round_ = 0;
  int planned_rounds_ = 0;
  std::size_t trials_ = 0;
  std::mt19937_64 random_;
};

}  // namespace sluice::nvme
