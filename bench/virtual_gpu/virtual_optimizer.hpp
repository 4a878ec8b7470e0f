#pragma once
// The optimizer in virtual time: cpu_adam::step_part() computes as always, and then its piece takes
// its bytes over a rate. The program is linked with --wrap for that. One set of rates at a time in
// a process.

#include <atomic>

#include "sluice/cpu_adam/optimizer.hpp"
#include "virtual_clock.hpp"

namespace sluice::bench {

struct VirtualOptimizer {
  VirtualClock* clock = nullptr;  // null: pieces take no time
  double bytes_per_second = 0;    // of all threads together
  // That an update reads and writes in memory.
  double bytes_of_element = 0;
  VirtualServer memory;
  std::atomic<std::uint64_t> elements{0};  // updated so far
};
// The one that the wrapped function uses; null: none. Set while no update runs.
void use_optimizer(VirtualOptimizer* optimizer);

}  // namespace sluice::bench
