#pragma once
// StepLines: what each step leaves for readers: its line in steps.jsonl, and its scalars in the
// files of the monitors.

#include <cstdint>
#include <exception>
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
  // A file that cannot be written ends no training: it is left as it is from here on, which the log
  // says.
  void append(const StepRecord& record);
  // Throws the IoError of steps.jsonl if steps are missing there.
  void check_complete() const;

 private:
  StepsFile steps_;
  std::optional<Monitors> monitors_;  // nothing after an error
  std::exception_ptr steps_error_;
};

}  // namespace sluice::train
