#pragma once
// Prefetcher: gathers the units in the order in which a pass uses them. It starts the gathers of
// later units early, and releases units that no later stage soon needs. The order of a step is
// known beforehand, so the prefetcher predicts nothing.
//
// Units are named by their place in the list that the constructor takes. Confined to the computing
// thread. Calls throw InvalidArgument for a unit that is not in the list.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/zero/sharded_unit.hpp"

namespace sluice::zero {

// Element i: one past the last stage that may be gathered early while stage i is in use, which is
// `units_ahead` stages later. Small stages, together at most 1/32 of the largest unit, are not
// counted, so that a norm between a block and the head does not delay the head. `elements[u]`:
// those of unit u. The ends do not decrease. Throws InvalidArgument for a unit that `elements`
// lacks. Thread-safe.
std::vector<std::size_t> ends_of_ahead(const std::vector<std::vector<std::size_t>>& stages,
                                       const std::vector<std::uint64_t>& elements, int units_ahead);

struct PrefetchLimits {
  int units_ahead = 1;  // stages of the pass that may be gathered early (ends_of_ahead); 0: none
  // Once this many elements are gathering early, no further unit is begun.
  std::uint64_t elements_ahead = ~0ULL;
  // Limit of elements gathered or gathering, those of the current stage included.
  std::uint64_t live_elements = ~0ULL;
};

class Prefetcher {
 public:
  // The units outlive the prefetcher. `retained[u]`: once gathered, unit u stays gathered until its
  // last use in the pass. Throws InvalidArgument for a null unit, and unless `retained` is as long
  // as `units`.
  Prefetcher(std::vector<ShardedUnit*> units, std::vector<bool> retained, PrefetchLimits limits);

  // Begins a pass: entry i lists the units that stage i uses together. Only units that are held may
  // be gathered.
  void begin_pass(std::vector<std::vector<std::size_t>> stages);
  // Blocks until the units of the next stage are gathered; starts the gathers of the stages after
  // it. Adds the time that compute work was idle to `stall`. Throws InvalidArgument behind the last
  // stage, and the errors of ShardedUnit's gathers.
  void enter_stage(GatherStall& stall);
  // Ends the stage: releases the units that no stage soon needs.
  void leave_stage();
  // Releases all units that are not held, even in the middle of a pass (after an error).
  void end_pass();

  // Keeps a gathered unit on the device, over stages and passes, until it was let go as often as it
  // was held. The next leave_stage() or end_pass() then releases it. let_go() throws
  // InvalidArgument for a unit that is not held.
  void hold(std::size_t unit);
  void let_go(std::size_t unit);
  // Lets units go until each is held `holds[u]` times. `holds` is as long as the units.
  void let_go_to(const std::vector<int>& holds);

 private:
  bool used_in(std::size_t unit, std::size_t first_stage, std::size_t end) const;
  void start_ahead();

  std::vector<ShardedUnit*> units_;
  std::vector<bool> retained_;
  std::vector<int> holds_;  // by unit
  PrefetchLimits limits_;
  std::vector<std::uint64_t> elements_;  // by unit
  std::vector<std::vector<std::size_t>> stages_;
  std::vector<std::size_t> ends_of_ahead_;  // by stage
  std::size_t next_ = 0;                    // the stage that enter_stage enters
};

}  // namespace sluice::zero
