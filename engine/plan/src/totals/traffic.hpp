#pragma once
// Bytes per step over each link, from the placement.

#include <cstdint>
#include <vector>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

struct UnitTraffic {
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  std::uint64_t read_bytes = 0;  // from NVMe
  std::uint64_t written_bytes = 0;
};
// By unit: what the computing thread's visits move in a step.
std::vector<UnitTraffic> visits_traffic(const Plan& plan);
// What a unit's update moves, on the average of steps that are committed and others.
UnitTraffic update_traffic(const Plan& plan, std::size_t unit);

void fill_traffic(Plan& plan);

}  // namespace sluice::plan
