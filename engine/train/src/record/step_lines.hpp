#pragma once
// StepLines: what each step leaves for readers: its line in steps.jsonl, and its scalars in the
// files of the monitors.

#include <cstdint>
#include <optional>
#include <string>

#include "record/monitors.hpp"
#include "record/steps_file.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class StepLines {
 public:
  // As StepsFile and Monitors; throws their errors.
  StepLines(const std::string& report_dir, const config::MonitorsConfig& monitors,
            std::int64_t committed_step, std::int64_t samples_per_step);
  // A file that cannot be written ends no training, and the log says so. Lines of steps wait until
  // they can be written; a monitor is left as it is from there on.
  void append(const StepRecord& record);
  // Writes the lines that wait. Throws IoError.
  void finish();

 private:
  StepsFile steps_;
  std::optional<Monitors> monitors_;  // nothing after an error
  bool lines_wait_ = false;
};

}  // namespace sluice::train
