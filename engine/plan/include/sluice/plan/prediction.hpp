#pragma once
// The predicted time of a plan's step on a machine with measured rates. It follows the engine's
// schedule unit by unit, with the seconds that each piece takes alone.
//
// Limitations: tiles and micro-batches are not modelled one by one, and contention between threads
// is a simple rule. So a prediction is right within some per cent; it is not a bound.
// Thread-safe: values and free functions without state.

#include <array>
#include <string>
#include <utility>

#include "sluice/plan/rates.hpp"

namespace sluice::plan {

struct Plan;

// The predicted seconds of a step, in the long run.
struct Prediction {
  double step_seconds = 0;
  double tokens_per_second = 0;
  // Seconds of each resource, alone.
  double compute_seconds = 0;
  double update_seconds = 0;
  double copy_seconds = 0;
  double drive_seconds = 0;
  std::string bound_by;  // the largest of them: "compute", "update", "copies", "drive"
  // The seconds above, by name.
  std::array<std::pair<const char*, double>, 4> links() const {
    return {{{"compute", compute_seconds},
             {"update", update_seconds},
             {"copies", copy_seconds},
             {"drive", drive_seconds}}};
  }
};
// Predicts a step of `plan`.
Prediction predict(const Plan& plan, const MachineRates& rates);
// The prediction as a table for people, with the date of the rates.
std::string prediction_text(const Prediction& prediction, const SavedRates& saved);

}  // namespace sluice::plan
