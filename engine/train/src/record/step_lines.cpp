#include "record/step_lines.hpp"

#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace {

void tell(LogLevel level, const IoError& error, const char* what, std::int64_t step) {
  log(level, std::string(error.what()) + "; " + what + " from step " + std::to_string(step) +
                 " on, and the training goes on");
}

}  // namespace

StepLines::StepLines(const std::string& report_dir, const config::MonitorsConfig& monitors,
                     std::int64_t committed_step, std::int64_t samples_per_step)
    : steps_(report_dir, committed_step),
      monitors_(std::in_place, monitors, committed_step, samples_per_step) {}

void StepLines::append(const StepRecord& record) {
  try {
    steps_.append(record);
    lines_wait_ = false;
  } catch (const IoError& error) {
    if (!std::exchange(lines_wait_, true))
      tell(LogLevel::error, error, "lines of steps wait", record.step);
  }
  try {
    if (monitors_) monitors_->append(record);
  } catch (const IoError& error) {
    monitors_.reset();
    tell(LogLevel::warn, error, "the monitors end: their values are missing", record.step);
  }
}

void StepLines::finish() {
  steps_.flush();
}

}  // namespace sluice::train
