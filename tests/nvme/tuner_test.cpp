#include "sluice/nvme/tuner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "sluice/base/error.hpp"

namespace sluice::nvme {
namespace {

// A drive whose speed grows with what is in flight, up to 8 MiB, and falls slowly with the depth.
TuneRates true_rates(const TuneSetting& setting) {
  const double in_flight =
      std::min(1.0, static_cast<double>(setting.bytes_in_flight()) / (8 << 20));
  const double base = 3e9 * std::sqrt(in_flight) * (1 - 0.01 * std::log2(setting.depth));
  return {base, 0.7 * base, 0.8 * base};
}

double true_score(const TuneSetting& setting) {
  return TunePoint{setting, true_rates(setting), 1}.score();
}

// As a shared drive is: a speed of its own from second to second, and every slice off by some.
class NoisyDrive {
 public:
  explicit NoisyDrive(std::uint64_t seed) : random_(seed) {}
  TuneRates measure(const TuneSetting& setting) {
    if (taken_++ % 20 == 0) second_ = std::exp(0.3 * normal_(random_));
    const auto noisy = [&](double rate) {
      return rate * second_ * std::exp(0.05 * normal_(random_));
    };
    const TuneRates rates = true_rates(setting);
    return {noisy(rates.read), noisy(rates.write), noisy(rates.mixed)};
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double second_ = 1;
  int taken_ = 0;
};

void run(Tuner& tuner, NoisyDrive& drive) {
  while (!tuner.done()) tuner.record(drive.measure(tuner.next()));
}

TEST(Tuner, SettingsStayWithinTheirLimits) {
  const auto settings = tune_settings();
  EXPECT_GT(settings.size(), 40U);
  for (const TuneSetting& setting : settings) {
    EXPECT_EQ(setting.block_bytes % 4096, 0U);
    EXPECT_LE(setting.bytes_in_flight(), 64U << 20U);
  }
}

TEST(Tuner, FindsAGoodSettingOnADriveWhoseSpeedMoves) {
  const auto settings = tune_settings();
  double most = 0;
  for (const TuneSetting& setting : settings) most = std::max(most, true_score(setting));
  int good = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Tuner tuner(settings, seed);
    NoisyDrive drive(seed);
    run(tuner, drive);
    good += true_score(tuner.best().setting) > most + std::log(0.95) ? 1 : 0;
  }
  EXPECT_GE(good, 45) << "of 50 within 5 % of the best";
}

TEST(Tuner, MeasuresTheGoodOnesMoreOften) {
  Tuner tuner(tune_settings());
  NoisyDrive drive(7);
  run(tuner, drive);
  EXPECT_EQ(tuner.recorded_trials(), tuner.planned_trials());
  int once = 0, most = 0;
  for (const TunePoint& point : tuner.points()) {
    EXPECT_GE(point.rounds, 1);
    once += point.rounds == 1 ? 1 : 0;
    most = std::max(most, point.rounds);
  }
  EXPECT_GE(once, static_cast<int>(tuner.points().size() / 2));
  EXPECT_GE(most, Tuner::kFinalRounds);
  EXPECT_EQ(tuner.best().rounds, most);
}

TEST(Tuner, OfEqualsTakesTheOneWithLeastInFlight) {
  Tuner tuner({{1 << 20, 64}, {1 << 20, 16}, {4 << 20, 16}});
  while (!tuner.done()) tuner.record({2e9, 1e9, 1.5e9});
  EXPECT_EQ(tuner.best().setting, (TuneSetting{1 << 20, 16}));
}

TEST(Tuner, AFewSettingsAllStayIn) {
  Tuner tuner({{4096, 1}, {8192, 1}});
  EXPECT_EQ(tuner.planned_trials(), 2U * Tuner::kFinalRounds);
  while (!tuner.done()) tuner.record({1e9, 1e9, 1e9});
  for (const TunePoint& point : tuner.points()) EXPECT_EQ(point.rounds, Tuner::kFinalRounds);
  EXPECT_THROW(tuner.next(), InvalidArgument);
}

TEST(Tuner, MistakesAreRefused) {
  EXPECT_THROW(Tuner({}), InvalidArgument);
  Tuner tuner({{4096, 1}});
  EXPECT_THROW(tuner.best(), InvalidArgument) << "nothing measured yet";
  EXPECT_THROW(tuner.record({1e9, 0, 1e9}), InvalidArgument);
}

}  // namespace
}  // namespace sluice::nvme
