#pragma once
// UnitOrder: the order in which a user's loop uses its units, learned from the micro-batch before,
// so that units are gathered ahead. A different order costs time and nothing else.
//
// Confined to the computing thread.

#include <cstddef>
#include <optional>
#include <vector>

#include "sluice/train/pass.hpp"
#include "sluice/zero/prefetcher.hpp"

namespace sluice::train {

class UnitOrder {
 public:
  explicit UnitOrder(zero::Prefetcher& prefetcher) : prefetcher_(prefetcher) {}

  // Micro-batches (forward and backward) have one order. Calls without gradients have another.
  // Blocks until these units are gathered. They stay so until leave(); other units may be entered
  // meanwhile.
  void enter(Pass pass, const std::vector<std::size_t>& units, zero::GatherStall& stall);
  void leave(const std::vector<std::size_t>& units);
  // Called at the end of a micro-batch. The next one is expected to use the units in this order.
  void end_micro_batch();
  // Releases all units that are not entered.
  void pause();
  // After an error: the micro-batch starts over. Releases all units but those that are `held`, by
  // unit: how often.
  void restart(const std::vector<int>& held);

 private:
  using Stages = std::vector<std::vector<std::size_t>>;
  struct Track {
    Stages expected;  // stages of the whole pass; empty: unknown
    Stages seen;      // stages so far
  };
  // A longer micro-batch is not learned as a whole.
  static constexpr std::size_t kMostSeen = 1U << 16;
  static void end(Track& track);

  zero::Prefetcher& prefetcher_;
  Track training_;
  Track evaluation_;
  std::optional<Pass> active_;  // the order that the prefetcher follows
};

}  // namespace sluice::train
