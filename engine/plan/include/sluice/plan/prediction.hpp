#pragma once
// What a step of a plan will cost on a machine whose rates are known: the schedule of the engine,
// unit by unit, with the seconds that each piece takes alone. Rates are measured by the training
// library (sluice/train/library.hpp) and kept in a file.
//
// A weakness: tiles and micro-batches are not told apart, and how threads get in each other's way
// is a simple rule; so it is a prediction, within some per cent, not a bound.
// Thread-safe: values and free functions without state.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Of one micro-batch in one unit.
struct UnitSeconds {
  double forward = 0;          // without gradients
  double forward_keeping = 0;  // with what backward needs; 0 for the head
  double backward = 0;         // after that; the head: forward and backward together
};

// What a machine does in a second, each thing alone, with the threads of the plan.
struct MachineRates {
  UnitSeconds embedding;
  UnitSeconds block;
  UnitSeconds head;
  double update_elements_per_second = 0;  // the optimizer's step in memory
  double gradient_bytes_per_second = 0;   // clearing a gradient, then its norm and finite check
  double copy_bytes_per_second = 0;       // between host memory and the device
  double checksum_bytes_per_second = 0;   // of states that are written
  // The drives of the swap directories, all together; 0: no state is on NVMe.
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double swap_bytes_per_second = 0;  // as an update does it, tiles read and written back, together
};

// Everything that rates depend on: machine, program, shapes, threads, directories, as one line.
std::string rates_key(const Plan& plan);

// The rates that were saved under `key`; nullopt when there are none, or the file is not readable
// as one of rates.
struct SavedRates {
  MachineRates rates;
  std::string measured;  // when: "2026-11-22 10:30"
};
std::optional<SavedRates> load_rates(const std::string& path, const std::string& key);
// Replaces the file with one that has these, and the newest others. Throws IoError.
void save_rates(const std::string& path, const std::string& key, const SavedRates& saved);

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
