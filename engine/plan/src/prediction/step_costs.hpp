#pragma once
// The costs of a step, each part alone: the seconds of every visit to a unit and of every update,
// from the plan and the machine's rates. Not installed.

#include <cstddef>
#include <vector>

#include "sluice/plan/plan.hpp"
#include "sluice/plan/rates.hpp"
#include "totals/traffic.hpp"

namespace sluice::plan {

// One visit of the computing thread to a unit.
struct Stage {
  std::size_t unit = 0;
  bool backward = false;
  bool last_pass = false;
  std::size_t micro_batches = 1;
  double compute_seconds = 0;
  double copy_seconds = 0;   // between host and device
  double drive_seconds = 0;  // for the bytes that it fetches and spills
};

// Seconds of one unit's update, each resource alone.
struct Update {
  double cpu_seconds = 0;
  double drive_seconds = 0;
  double read_seconds = 0;  // reads alone; drive_seconds has both
  double write_seconds = 0;
  double tiles = 0;  // tiles of its states; 0 when an update reads none
};

// Constant after construction; plan and rates outlive it.
class Costs {
 public:
  Costs(const Plan& plan, const MachineRates& rates)
      : plan_(plan), rates_(rates), visits_(visits_traffic(plan)) {}

  // The visits of a step, in order.
  std::vector<Stage> stages() const;
  // An update whose results were kept sends home the weights alone.
  Update keeping(std::size_t unit) const;
  Update update(std::size_t unit) const;

 private:
  double share_on_device(std::size_t unit) const;
  double compute_seconds(const Stage& stage) const;

  const Plan& plan_;
  const MachineRates& rates_;
  const std::vector<UnitTraffic> visits_;
};

}  // namespace sluice::plan
