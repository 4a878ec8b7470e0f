#pragma once
// Tuner: decides which settings of the I/O engine to measure next, and which setting is best. The
// caller measures.
//
// A drive's speed varies more from second to second than two good settings differ, so settings are
// compared within rounds. Each round measures the remaining settings in a new order; the better
// half stays. The last few settings are measured in several rounds. Compared settings share every
// round, so variation between rounds cancels.
//
// The usual setting (in use without a tuner) stays in every round. It remains the choice unless
// another setting is clearly better in the last rounds. Only the last rounds count, because earlier
// rounds selected the other settings and so favour them.
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

// Bytes per second for each pattern of the same name (LoadPattern).
struct TuneRates {
  double read = 0;
  double write = 0;
  double mixed = 0;
  double mean() const;  // geometric: a step does all three
};

struct TunePoint {
  TuneSetting setting;
  TuneRates rates;  // geometric means over the rounds
  int rounds = 0;
  // TuneRates::mean() in each of the last rounds, in order.
  std::vector<double> last_means;
};

struct TuneChoice {
  TunePoint point;  // the setting to use
  // The best other setting, and the ratios of its means to those of the usual setting in the last
  // rounds. The median is 0 without a usual setting, without another one, or with fewer than
  // kLeastPairs last rounds.
  TuneSetting compared;
  RatioSummary gain;
};

// The candidates: blocks of 64 KiB to 8 MiB and depths of 1 to 128, powers of two, with at most
// 64 MiB in flight.
std::vector<TuneSetting> tune_settings();

class Tuner {
 public:
  // `usual`: the setting that stays unless another one is clearly better; measured first. `seed`:
  // of the order within rounds. Throws InvalidArgument without settings, or when `usual` is not
  // among the settings.
  explicit Tuner(const std::vector<TuneSetting>& settings,
                 std::optional<TuneSetting> usual = std::nullopt, std::uint64_t seed = 1);

  // Rounds at the end of a complete run, all with equal settings.
  static constexpr int kLastRounds = 8;
  // Fewer pairs do not show their noise.
  static constexpr std::size_t kLeastPairs = 4;
  // Trials of a complete run.
  std::size_t planned_trials() const;
  bool done() const { return round_ >= halving_rounds_ + kLastRounds; }
  // The setting to measure next. Throws InvalidArgument when done().
  TuneSetting next() const;
  // Records the rates measured for next(). Throws InvalidArgument when a rate is not above 0, or
  // when done().
  void record(const TuneRates& rates);

  std::size_t recorded_trials() const { return trials_; }
  const std::vector<TunePoint>& points() const { return points_; }
  // The best setting. With a usual setting, candidates are the settings that are better by more
  // than 2 % and by more than the noise; without candidates, the usual setting wins. Without a
  // usual setting, candidates are the settings with the most rounds. Among candidates within 2 % of
  // the best, the one with the fewest bytes in flight wins. Throws InvalidArgument before the first
  // record().
  TuneChoice choose() const;

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  void begin_round();
  TuneChoice choose_beside_usual() const;
  TuneChoice choose_of_most_rounds() const;

  std::vector<TunePoint> points_;
  std::size_t usual_ = kNone;    // index into points_
  std::vector<std::size_t> in_;  // remaining indices into points_, in the order of this round
  std::size_t at_ = 0;           // index into in_ of the next setting
  int round_ = 0;
  int halving_rounds_ = 0;  // rounds before the last kLastRounds
  std::size_t trials_ = 0;
  std::mt19937_64 random_;
};

}  // namespace sluice::nvme
