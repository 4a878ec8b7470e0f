#pragma once
// Prefetcher: walks the units in the order in which a pass uses them, gathers each before it is
// needed, starts the ones after it early, and releases what is not needed soon. The order of a step
// is known beforehand, so nothing is guessed.
//
// Confined to the computing thread.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/zero/sharded_unit.hpp"

namespace sluice::zero {

struct PrefetchLimits {
  int units_ahead = 1;  // entries of the pass that may be gathered early; 0: none
  std::uint64_t elements_ahead =
      ~0ULL;  // no further unit is begun once this many are on their way early
  std::uint64_t live_elements = ~0ULL;  // gathered or on their way, the current ones included
};

class Prefetcher {
 public:
  // The units outlive it. `keep[u]`: once gathered, unit u stays until its last use in the pass.
  Prefetcher(std::vector<ShardedUnit*> units, std::vector<bool> keep, PrefetchLimits limits);

  // A pass: entry i lists the units that are used together at its i-th stage. Nothing may be
  // gathered before.
  void begin_pass(std::vector<std::vector<std::size_t>> stages);
  // Blocks until the units of the next stage are on the device, and starts those of the stages
  // after it. `stall` grows by the time it blocked.
  void enter_stage(GatherStall& stall);
  // The stage's units are not used any more: releases what no stage soon needs.
  void leave_stage();
  // Releases everything, also in the middle of a pass (after an error).
  void end_pass();

 private:
  bool used_in(std::size_t unit, std::size_t first_stage, std::size_t last_stage) const;
  void start_ahead();

  std::vector<ShardedUnit*> units_;
  std::vector<bool> keep_;
  PrefetchLimits limits_;
  std::vector<std::vector<std::size_t>> stages_;
  std::size_t next_ = 0;  // the stage that enter_stage enters
};

}  // namespace sluice::zero
