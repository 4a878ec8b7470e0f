#pragma once
// StepLines: what each step leaves for readers: its line in steps.jsonl, and its scalars in the
// files of the monitors.

#include <cstdint>
#include <exception>
#include <string>

#include "record/monitors.hpp"
#include "record/steps_file.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class StepLines {
 public:
  // As StepsFile and Monitors; throws their errors. An empty `report_dir` has no steps.jsonl.
  StepLines(const std::string& report_dir, const config::MonitorsConfig& monitors,
            std::int64_t committed_step, const SamplesAxis& axis);
  // Tries to write what still waits; the log says what was lost.
  ~StepLines();
  StepLines(const StepLines&) = delete;
  StepLines& operator=(const StepLines&) = delete;
  // A file that cannot be written ends no training, and the log says so. Lines and values wait
  // until they can be written.
  void append(const StepRecord& record);
  // Before a commit that survives loss of power: the lines in steps.jsonl do so too. Blocks. Where
  // they cannot be synced, no training ends: the log says so once, and finish() throws that error.
  // Monitors' files are not synced.
  void sync();
  // Writes all that waits; every file then has what was written to it. Throws IoError.
  void finish();

 private:
  StepsFile steps_;
  Monitors monitors_;
  bool lines_wait_ = false;
  bool values_wait_ = false;
  std::exception_ptr sync_error_;  // the system tells once of lost bytes
};

}  // namespace sluice::train
