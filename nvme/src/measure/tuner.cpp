#include "sluice/nvme/tuner.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {

namespace {

constexpr double kTie = 1.02;  // settings with a smaller ratio are equally good
constexpr std::size_t kFinalists = 6;

// The number of settings that stay after a round with `count` settings.
std::size_t next_count(std::size_t count) {
  return std::max(std::min(count, kFinalists), count / 2);
}

void add_to_mean(double& mean, double value, int rounds) {
  mean = rounds == 0 ? value : std::exp((std::log(mean) * rounds + std::log(value)) / (rounds + 1));
}

struct Candidate {
  const TunePoint* point;
  double rate;
};

// The candidate within kTie of the fastest that has the fewest bytes in flight; among equals, the
// fastest.
const TunePoint& least_in_flight(const std::vector<Candidate>& candidates) {
  const double most = std::ranges::max_element(candidates, {}, &Candidate::rate)->rate;
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (candidate.rate * kTie < most) continue;
    const auto in_flight = candidate.point->setting.bytes_in_flight();
    if (best == nullptr || in_flight < best->point->setting.bytes_in_flight() ||
        (in_flight == best->point->setting.bytes_in_flight() && candidate.rate > best->rate))
      best = &candidate;
  }
  return *best->point;
}

}  // namespace

double TuneRates::mean() const {
  return std::cbrt(read * write * mixed);
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

Tuner::Tuner(const std::vector<TuneSetting>& settings, std::optional<TuneSetting> usual,
             std::uint64_t seed)
    : random_(seed) {
  SLUICE_CHECK(!settings.empty(), "Tuner: no settings");
  for (const TuneSetting& setting : settings) points_.push_back({setting, {}, 0, {}});
  in_.resize(points_.size());
  std::iota(in_.begin(), in_.end(), std::size_t{0});
  for (std::size_t count = in_.size(); count > kFinalists; count = next_count(count))
    ++halving_rounds_;
  std::shuffle(in_.begin(), in_.end(), random_);
  if (usual) {
    const auto found = std::ranges::find(points_, *usual, &TunePoint::setting);
    SLUICE_CHECK(found != points_.end(), "Tuner: the usual setting is not one of those to measure");
    usual_ = static_cast<std::size_t>(found - points_.begin());
    std::iter_swap(in_.begin(), std::ranges::find(in_, usual_));
  }
}

std::size_t Tuner::planned_trials() const {
  std::size_t trials = 0;
  std::size_t count = points_.size();
  for (int round = 0; round < halving_rounds_; ++round) {
    trials += count;
    count = next_count(count);
  }
  return trials + kLastRounds * count;
}

TuneSetting Tuner::next() const {
  SLUICE_CHECK(!done(), "Tuner: every round has been measured");
  return points_[in_[at_]].setting;
}

void Tuner::record(const TuneRates& rates) {
  SLUICE_CHECK(!done(), "Tuner: every round has been measured");
  for (const double rate : {rates.read, rates.write, rates.mixed})
    SLUICE_CHECK(rate > 0 && std::isfinite(rate), "Tuner: a rate that is not above 0 and finite");
  TunePoint& point = points_[in_[at_]];
  add_to_mean(point.rates.read, rates.read, point.rounds);
  add_to_mean(point.rates.write, rates.write, point.rounds);
  add_to_mean(point.rates.mixed, rates.mixed, point.rounds);
  ++point.rounds;
  ++trials_;
  if (round_ >= halving_rounds_) point.last_means.push_back(rates.mean());
  if (++at_ == in_.size()) begin_round();
}

void Tuner::begin_round() {
  std::sort(in_.begin(), in_.end(), [&](std::size_t a, std::size_t b) {
    if (a == usual_ || b == usual_) return a == usual_ && b != usual_;
    return points_[a].rates.mean() > points_[b].rates.mean();
  });
  in_.resize(next_count(in_.size()));
  std::shuffle(in_.begin(), in_.end(), random_);
  at_ = 0;
  ++round_;
}

TuneChoice Tuner::choose() const {
  SLUICE_CHECK(trials_ > 0, "Tuner: nothing has been measured");
  return usual_ == kNone ? choose_of_most_rounds() : choose_beside_usual();
}

TuneChoice Tuner::choose_beside_usual() const {
  const TunePoint& usual = points_[usual_];
  TuneChoice choice{usual, {}, {}};
  std::vector<Candidate> better;
  for (const TunePoint& point : points_) {
    if (&point == &usual || point.last_means.size() < kLeastPairs) continue;
    const RatioSummary gain = summarize_pairs(point.last_means, usual.last_means);
    if (gain.clearly_above(kTie)) better.push_back({&point, gain.median});
    if (gain.median > choice.gain.median) {
      choice.gain = gain;
      choice.compared = point.setting;
    }
  }
  if (better.empty()) return choice;
  choice.point = least_in_flight(better);
  choice.compared = choice.point.setting;
  choice.gain = summarize_pairs(choice.point.last_means, usual.last_means);
  return choice;
}

TuneChoice Tuner::choose_of_most_rounds() const {
  const int most = std::ranges::max_element(points_, {}, &TunePoint::rounds)->rounds;
  std::vector<Candidate> candidates;
  for (const TunePoint& point : points_)
    if (point.rounds == most) candidates.push_back({&point, point.rates.mean()});
  return {least_in_flight(candidates), {}, {}};
}

}  // namespace sluice::nvme
