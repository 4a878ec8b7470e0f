#pragma once
// Bytes that a step moves over each link, from the placement. Thread-safe: values and free
// functions without state.

#include <cstdint>
#include <vector>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Bytes that one unit moves.
struct UnitTraffic {
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  std::uint64_t read_bytes = 0;  // from NVMe
  std::uint64_t written_bytes = 0;
};
// By unit: bytes that the computing thread's visits to the unit move in a step.
std::vector<UnitTraffic> visits_traffic(const Plan& plan);
// Bytes that a unit's update moves, on the average of committed steps and others.
UnitTraffic update_traffic(const Plan& plan, std::size_t unit);

// Sets plan.traffic.
void fill_traffic(Plan& plan);

}  // namespace sluice::plan
