#include "sluice/nvme/tuner.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {

namespace {

constexpr double kTie = 0.02;  // settings this close are the same drive's noise

// How many go on from a round with `count`.
std::size_t next_count(std::size_t count, std::size_t finalists) {
  return std::max(std::min(count, finalists), count / 2);
}

void add_to_mean(double& mean, double value, int rounds) {
  mean = rounds == 0 ? value : std::exp((std::log(mean) * rounds + std::log(value)) / (rounds + 1));
}

}  // namespace

double TunePoint::score() const {
  return (std::log(rates.read) + std::log(rates.write) + std::log(rates.mixed)) / 3;
}

std::vector<TuneSetting> tune_settings() {
  std::vector<TuneSetting> settings;
  for (std::uint64_t block = 64 * kKiB; block <= 8 * kMiB; block *= 2) {
    for (unsigned depth = 1; depth <= 128; depth *= 2) {
      if (block * depth <= 64 * kMiB)
        settings.push_back({static_cast<std::uint32_t>(block), depth});
    }
  }
  return settings;
}

Tuner::Tuner(const std::vector<TuneSetting>& settings, std::uint64_t seed) : random_(seed) {
  SLUICE_CHECK(!settings.empty(), "Tuner: no settings");
  for (const TuneSetting& setting : settings) points_.push_back({setting, {}, 0});
  in_.resize(points_.size());
  std::iota(in_.begin(), in_.end(), std::size_t{0});
  planned_rounds_ = kFinalRounds;
  for (std::size_t count = in_.size(); count > kFinalists; count = next_count(count, kFinalists))
    ++planned_rounds_;
  std::shuffle(in_.begin(), in_.end(), random_);
}

std::size_t Tuner::planned_trials() const {
  std::size_t trials = 0;
  std::size_t count = points_.size();
  for (int round = 0; round < planned_rounds_; ++round) {
    trials += count;
    count = next_count(count, kFinalists);
  }
  return trials;
}

TuneSetting Tuner::next() const {
  SLUICE_CHECK(!done(), "Tuner: every round has been measured");
  return points_[in_[at_]].setting;
}

void Tuner::record(const TuneRates& rates) {
  SLUICE_CHECK(!done(), "Tuner: every round has been measured");
  SLUICE_CHECK(rates.read > 0 && rates.write > 0 && rates.mixed > 0,
               "Tuner: a rate that is not above 0");
  TunePoint& point = points_[in_[at_]];
  add_to_mean(point.rates.read, rates.read, point.rounds);
  add_to_mean(point.rates.write, rates.write, point.rounds);
  add_to_mean(point.rates.mixed, rates.mixed, point.rounds);
  ++point.rounds;
  ++trials_;
  if (++at_ == in_.size()) begin_round();
}

void Tuner::begin_round() {
  std::sort(in_.begin(), in_.end(),
            [&](std::size_t a, std::size_t b) { return points_[a].score() > points_[b].score(); });
  in_.resize(next_count(in_.size(), kFinalists));
  std::shuffle(in_.begin(), in_.end(), random_);
  at_ = 0;
  ++round_;
}

const TunePoint& Tuner::best() const {
  SLUICE_CHECK(trials_ > 0, "Tuner: nothing has been measured");
  int most_rounds = 0;
  for (const TunePoint& point : points_) most_rounds = std::max(most_rounds, point.rounds);
  double most = 0;
  for (const TunePoint& point : points_)
    if (point.rounds == most_rounds) most = std::max(most, point.score());
  const TunePoint* best = nullptr;
  for (const TunePoint& point : points_) {
    if (point.rounds < most_rounds || point.score() < most - kTie) continue;
    if (best == nullptr || point.setting.bytes_in_flight() < best->setting.bytes_in_flight() ||
        (point.setting.bytes_in_flight() == best->setting.bytes_in_flight() &&
         point.score() > best->score())) {
      best = &point;
    }
  }
  return *best;
}

}  // namespace sluice::nvme
