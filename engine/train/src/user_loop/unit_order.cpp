#include "user_loop/unit_order.hpp"

#include <utility>

namespace sluice::train {

void UnitOrder::end(Track& track) {
  track.expected = std::move(track.seen);
  track.seen.clear();
}

void UnitOrder::enter(Pass pass, const std::vector<std::size_t>& units, zero::GatherStall& stall) {
  Track& track = pass == Pass::training ? training_ : evaluation_;
  // An evaluation has no announced end: its next batch begins with the unit that began the first.
  if (pass == Pass::evaluation && !track.seen.empty() && units == track.seen.front()) {
    end(track);
    pause();
  }
  const auto is_expected = [&] {
    const std::size_t at = track.seen.size();
    return at < track.expected.size() && track.expected[at] == units;
  };
  // A forward without a backward, as in an evaluation with gradients on: the next one begins anew.
  const bool is_first = !track.seen.empty() && units == track.seen.front();
  const bool has_order = !track.expected.empty() || track.seen.size() >= kMostSeen;
  if (!is_expected() && is_first && has_order) {
    track.seen.clear();
    pause();
  }
  const std::size_t at = track.seen.size();
  if (!is_expected()) {
    track.expected.clear();
    pause();
    prefetcher_.begin_pass({units});
  } else if (active_ != pass) {
    pause();
    prefetcher_.begin_pass(
        {track.expected.begin() + static_cast<std::ptrdiff_t>(at), track.expected.end()});
  }
  active_ = pass;
  track.seen.push_back(units);
  prefetcher_.enter_stage(stall);
  for (const std::size_t unit : units) prefetcher_.hold(unit);
}

void UnitOrder::leave(const std::vector<std::size_t>& units) {
  for (const std::size_t unit : units) prefetcher_.let_go(unit);
  prefetcher_.leave_stage();
}

void UnitOrder::end_micro_batch() {
  end(training_);
  pause();
}

void UnitOrder::pause() {
  prefetcher_.end_pass();
  active_.reset();
}

void UnitOrder::restart(const std::vector<int>& held) {
  training_.seen.clear();
  evaluation_.seen.clear();
  prefetcher_.let_go_to(held);
  pause();
}

}  // namespace sluice::train
