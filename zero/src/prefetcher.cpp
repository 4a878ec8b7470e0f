#include "sluice/zero/prefetcher.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::zero {

namespace {

constexpr std::uint64_t kTinyShare = 32;

void check_unit(std::size_t unit, std::size_t count) {
  SLUICE_CHECK(unit < count, "there is no unit " + std::to_string(unit) + ", but " +
                                 std::to_string(count) + " units");
}

}  // namespace

std::vector<std::size_t> ends_of_ahead(const std::vector<std::vector<std::size_t>>& stages,
                                       const std::vector<std::uint64_t>& elements,
                                       int units_ahead) {
  const std::uint64_t tiny =
      elements.empty() ? 0 : *std::max_element(elements.begin(), elements.end()) / kTinyShare;
  for (const std::vector<std::size_t>& stage : stages) {
    for (const std::size_t unit : stage) check_unit(unit, elements.size());
  }
  std::vector<std::size_t> ends;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::size_t end = stage + 1;
    std::uint64_t uncounted = 0;
    for (int counted = 0; counted < units_ahead && end < stages.size(); ++end) {
      for (const std::size_t unit : stages[end]) uncounted += elements[unit];
      if (uncounted <= tiny) continue;
      uncounted = 0;
      ++counted;
    }
    ends.push_back(end);
  }
  return ends;
}

Prefetcher::Prefetcher(std::vector<ShardedUnit*> units, std::vector<bool> retained,
                       PrefetchLimits limits)
    : units_(std::move(units)),
      retained_(std::move(retained)),
      holds_(units_.size()),
      limits_(limits) {
  SLUICE_CHECK(retained_.size() == units_.size(), "one retained flag for each unit");
  for (const ShardedUnit* unit : units_) {
    SLUICE_CHECK(unit != nullptr, "a prefetcher's unit is null");
    elements_.push_back(unit->layout().flat_count);
  }
}

void Prefetcher::begin_pass(std::vector<std::vector<std::size_t>> stages) {
  ends_of_ahead_ = ends_of_ahead(stages, elements_, limits_.units_ahead);
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
    const std::uint64_t count = elements_[u];
    live += count;
    if (!used_in(u, next_ - 1, next_)) ahead += count;
  }
  const std::size_t end = ends_of_ahead_[next_ - 1];
  for (std::size_t stage = next_; stage < end; ++stage) {
    for (const std::size_t unit : stages_[stage]) {
      if (units_[unit]->weight_state() != WeightState::sharded) continue;
      const std::uint64_t count = elements_[unit];
      if (ahead >= limits_.elements_ahead || live + count > limits_.live_elements) return;
      units_[unit]->begin_gather();
      live += count;
      ahead += count;
    }
  }
}

void Prefetcher::leave_stage() {
  const std::size_t end = next_ < stages_.size() ? ends_of_ahead_[next_] : next_;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (holds_[u] > 0 || units_[u]->weight_state() != WeightState::gathered) continue;
    if (!used_in(u, next_, retained_[u] ? stages_.size() : end)) units_[u]->release();
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
  check_unit(unit, units_.size());
  ++holds_[unit];
}

void Prefetcher::let_go(std::size_t unit) {
  check_unit(unit, units_.size());
  SLUICE_CHECK(holds_[unit] > 0, "unit " + units_[unit]->layout().name + " is not held");
  --holds_[unit];
}

void Prefetcher::let_go_to(const std::vector<int>& holds) {
  SLUICE_CHECK(holds.size() == holds_.size(), "one count of holds for each unit");
  holds_ = holds;
}

// Whether `unit` is used in the stages [first_stage, end), as far as there are any.
bool Prefetcher::used_in(std::size_t unit, std::size_t first_stage, std::size_t end) const {
  for (std::size_t stage = first_stage; stage < stages_.size() && stage < end; ++stage) {
    if (std::find(stages_[stage].begin(), stages_[stage].end(), unit) != stages_[stage].end()) {
      return true;
    }
  }
  return false;
}

}  // namespace sluice::zero
