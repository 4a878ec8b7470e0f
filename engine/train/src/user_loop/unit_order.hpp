#pragma once
// UnitOrder: in which order a user's loop uses its units, learned from the micro-batch before: so
// units can be gathered before they are asked for. An order that differs costs time, nothing else.
//
// Confined to the computing thread.

#include <cstddef>
#include <optional>
#include <vector>

#include "sluice/zero/prefetcher.hpp"

namespace sluice::train {

class UnitOrder {
 public:
  explicit UnitOrder(zero::Prefetcher& prefetcher) : prefetcher_(prefetcher) {}

  // Forward and backward of micro-batches, and what runs without gradients between them, each have
  // an order of their own.
  enum class Pass { training, evaluation };
  // Blocks until these units are on the device; one call at a time.
  void enter(Pass pass, const std::vector<std::size_t>& units, zero::GatherStall& stall);
  void leave() { prefetcher_.leave_stage(); }
  // A micro-batch has ended: the next one is expected to use the units in the same order.
  void end_micro_batch();
  // Releases everything that was gathered ahead.
  void pause();
  // The same, and forgets where the micro-batch was, after an error.
  void restart();

 private:
  using Stages = std::vector<std::vector<std::size_t>>;
  struct Track {
    Stages expected;  // of the whole pass; empty: not known
    Stages seen;      // so far
  };
  static void end(Track& track);

  zero::Prefetcher& prefetcher_;
  Track training_;
  Track evaluation_;
  std::optional<Pass> active_;  // what the prefetcher follows
};

}  // namespace sluice::train
