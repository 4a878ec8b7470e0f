#include "sluice/nvme/tuner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "sluice/base/error.hpp"

namespace sluice::nvme {
namespace {

// A drive whose speed grows with the bytes in flight, up to 8 MiB, and falls slowly with the depth.
TuneRates true_rates(const TuneSetting& setting) {
  const double in_flight =
      std::min(1.0, static_cast<double>(setting.bytes_in_flight()) / (8 << 20));
  const double base = 3e9 * std::sqrt(in_flight) * (1 - 0.01 * std::log2(setting.depth));
  return {base, 0.7 * base, 0.8 * base};
}

double true_score(const TuneSetting& setting) {
  return true_rates(setting).mean();
}

// A shared drive: its speed changes from second to second, and every slice has noise.
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
    Tuner tuner(settings, std::nullopt, seed);
    NoisyDrive drive(seed);
    run(tuner, drive);
    good += true_score(tuner.choose().point.setting) > 0.95 * most ? 1 : 0;
  }
  EXPECT_GE(good, 45) << "of 50 within 5 % of the best";
}

TEST(Tuner, LeavesAUsualSettingThatIsClearlyWorse) {
  const TuneSetting usual{128 << 10, 8};  // an eighth of the bytes in flight that the drive needs
  double most = 0;
  for (const TuneSetting& setting : tune_settings()) most = std::max(most, true_score(setting));
  int good = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Tuner tuner(tune_settings(), usual, seed);
    NoisyDrive drive(seed);
    run(tuner, drive);
    const TuneChoice choice = tuner.choose();
    EXPECT_EQ(choice.compared, choice.point.setting);
    EXPECT_GT(choice.gain.interval_begin, 1);
    good += true_score(choice.point.setting) > 0.95 * most ? 1 : 0;
  }
  EXPECT_GE(good, 45) << "of 50 within 5 % of the best";
}

// A choice by luck alone: all settings are equally fast.
TEST(Tuner, StaysWithTheUsualSettingWhereOthersAreOnlyLucky) {
  const TuneSetting usual{256 << 10, 32};
  int stayed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(0, 0.15);
    Tuner tuner(tune_settings(), usual, seed);
    while (!tuner.done()) {
      const double rate = 2e9 * std::exp(noise(random));
      tuner.record({rate, rate, rate});
    }
    const TuneChoice choice = tuner.choose();
    stayed += choice.point.setting == usual ? 1 : 0;
    EXPECT_NE(choice.compared, usual);
    EXPECT_LT(choice.gain.interval_begin, choice.gain.interval_end);
  }
  EXPECT_GE(stayed, 120) << "of 200, with five others to be lucky";
}

TEST(Tuner, TheUsualSettingIsMeasuredFirstAndInEveryRound) {
  const TuneSetting usual{64 << 10, 1};  // the slowest setting
  Tuner tuner(tune_settings(), usual);
  EXPECT_EQ(tuner.next(), usual);
  NoisyDrive drive(3);
  tuner.record(drive.measure(tuner.next()));
  EXPECT_EQ(tuner.choose().point.setting, usual) << "nothing has been compared with it yet";
  EXPECT_EQ(tuner.choose().gain.median, 0);
  run(tuner, drive);
  int most = 0;
  for (const TunePoint& point : tuner.points()) most = std::max(most, point.rounds);
  const auto point = std::ranges::find(tuner.points(), usual, &TunePoint::setting);
  EXPECT_EQ(point->rounds, most);
  EXPECT_EQ(point->last_means.size(), static_cast<std::size_t>(Tuner::kLastRounds));
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
  EXPECT_GE(most, Tuner::kLastRounds);
  EXPECT_EQ(tuner.choose().point.rounds, most);
}

TEST(Tuner, OfEqualsTakesTheOneWithLeastInFlight) {
  Tuner tuner({{1 << 20, 64}, {1 << 20, 16}, {4 << 20, 16}});
  while (!tuner.done()) tuner.record({2e9, 1e9, 1.5e9});
  EXPECT_EQ(tuner.choose().point.setting, (TuneSetting{1 << 20, 16}));
}

TEST(Tuner, AFewSettingsAllStayIn) {
  Tuner tuner({{4096, 1}, {8192, 1}});
  EXPECT_EQ(tuner.planned_trials(), 2U * Tuner::kLastRounds);
  while (!tuner.done()) tuner.record({1e9, 1e9, 1e9});
  for (const TunePoint& point : tuner.points()) EXPECT_EQ(point.rounds, Tuner::kLastRounds);
  EXPECT_THROW(tuner.next(), InvalidArgument);
}

TEST(Tuner, MistakesAreRefused) {
  EXPECT_THROW(Tuner({}), InvalidArgument);
  Tuner tuner({{4096, 1}});
  EXPECT_THROW(tuner.choose(), InvalidArgument) << "nothing measured yet";
  EXPECT_THROW(Tuner({{4096, 1}}, TuneSetting{4096, 2}), InvalidArgument) << "not one of them";
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (const double rate : {0.0, kInfinite, std::nan("")})
    EXPECT_THROW(tuner.record({1e9, rate, 1e9}), InvalidArgument) << rate;
}

}  // namespace
}  // namespace sluice::nvme
