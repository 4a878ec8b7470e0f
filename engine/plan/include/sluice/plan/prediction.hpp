#pragma once
// What a step of a plan will cost on a machine whose rates are known: the schedule of the engine,
// unit by unit, with the seconds that each piece takes alone.
//
// A weakness: tiles and micro-batches are not told apart, and how threads get in each other's way
// is a simple rule; so it is a prediction, within some per cent, not a bound.
// Thread-safe: values and free functions without state.

#include <array>
#include <string>
#include <utility>

#include "sluice/plan/rates.hpp"

namespace sluice::plan {

struct Plan;

// Seconds of a step in the long run.
struct Prediction {
  double step_seconds = 0;
  double tokens_per_second = 0;
  // What each would take alone.
  double compute_seconds = 0;
  double update_seconds = 0;
  double copy_seconds = 0;
  double drive_seconds = 0;
  std::string bound_by;  // the largest of these: "compute", "update", "copies", "drive"
  // These, by name.
  std::array<std::pair<const char*, double>, 4> links() const {
    return {{{"compute", compute_seconds},
             {"update", update_seconds},
             {"copies", copy_seconds},
             {"drive", drive_seconds}}};
  }
};
Prediction predict(const Plan& plan, const MachineRates& rates);
std::string prediction_text(const Prediction& prediction, const SavedRates& saved);

}  // namespace sluice::plan
