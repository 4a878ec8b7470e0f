#include "sluice/zero/prefetcher.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::zero {

Prefetcher::Prefetcher(std::vector<ShardedUnit*> units, std::vector<bool> retained,
                       PrefetchLimits limits)
    : units_(std::move(units)),
      retained_(std::move(retained)),
      holds_(units_.size()),
      limits_(limits) {
  SLUICE_CHECK(retained_.size() == units_.size(), "one retained flag for each unit");
}

void Prefetcher::begin_pass(std::vector<std::vector<std::size_t>> stages) {
  stages_ = std::move(stages);
  next_ = 0;
}

void Prefetcher::enter_stage(GatherStall& stall) {
  SLUICE_CHECK(next_ < stages_.size(), "a pass has " + std::to_string(stages_.size()) + " stages");
  for (const std::size_t unit : stages_[next_]) {
    if (units_[unit]->weight_state() == WeightState::sharded) units_[unit]->begin_gather();
  }
  ++next_;
  start_ahead();
  for (const std::size_t unit : stages_[next_ - 1]) units_[unit]->finish_gather(stall);
}

void Prefetcher::start_ahead() {
  std::uint64_t live = 0;
  std::uint64_t ahead = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u]->weight_state() == WeightState::sharded) continue;
    const std::uint64_t count = units_[u]->layout().flat_count;
    live += count;
    if (!used_in(u, next_ - 1, next_ - 1)) ahead += count;
  }
  const std::size_t last =
      std::min(stages_.size(), next_ + static_cast<std::size_t>(limits_.units_ahead));
  for (std::size_t stage = next_; stage < last; ++stage) {
    for (const std::size_t unit : stages_[stage]) {
      if (units_[unit]->weight_state() != WeightState::sharded) continue;
      const std::uint64_t count = units_[unit]->layout().flat_count;
      if (ahead >= limits_.elements_ahead || live + count > limits_.live_elements) return;
      units_[unit]->begin_gather();
      live += count;
      ahead += count;
    }
  }
}

void Prefetcher::leave_stage() {
  const std::size_t soon = next_ + static_cast<std::size_t>(limits_.units_ahead);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (holds_[u] > 0 || units_[u]->weight_state() != WeightState::gathered) continue;
    const bool needed = retained_[u] ? used_in(u, next_, stages_.size()) : used_in(u, next_, soon);
    if (!needed) units_[u]->release();
  }
}

void Prefetcher::end_pass() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (holds_[u] == 0 && units_[u]->weight_state() != WeightState::sharded) units_[u]->release();
  }
  stages_.clear();
  next_ = 0;
}

void Prefetcher::hold(std::size_t unit) {
  ++holds_[unit];
}

void Prefetcher::let_go(std::size_t unit) {
  SLUICE_CHECK(holds_[unit] > 0, "unit " + units_[unit]->layout().name + " is not held");
  --holds_[unit];
}

void Prefetcher::let_all_go() {
  std::fill(holds_.begin(), holds_.end(), 0);
}

// Whether `unit` is used in the stages [first_stage, last_stage], as far as there are any.
bool Prefetcher::used_in(std::size_t unit, std::size_t first_stage, std::size_t last_stage) const {
  for (std::size_t stage = first_stage; stage < stages_.size() && stage <= last_stage; ++stage) {
    if (std::find(stages_[stage].begin(), stages_[stage].end(), unit) != stages_[stage].end()) {
      return true;
    }
  }
  return false;
}

}  // namespace sluice::zero
