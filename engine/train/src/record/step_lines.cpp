#include "record/step_lines.hpp"

#include <functional>
#include <stdexcept>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace {

// `waits`: whether texts of earlier steps wait already, so that the log has one line for them.
void write_or_wait(bool& waits, const char* what, std::int64_t step,
                   const std::function<void()>& write) {
  try {
    write();
    waits = false;
  } catch (const std::runtime_error& error) {  // IoError, StorageError
    if (std::exchange(waits, true)) return;
    log(LogLevel::error, std::string(error.what()) + "; " + what + " wait from step " +
                             std::to_string(step) + " on, and the training goes on");
  }
}

}  // namespace

StepLines::StepLines(const std::string& report_dir, const config::MonitorsConfig& monitors,
                     std::int64_t committed_step, const SamplesAxis& axis)
    : steps_(report_dir, committed_step), monitors_(monitors, committed_step, axis) {}

StepLines::~StepLines() {
  if (!lines_wait_ && !values_wait_) return;
  try {
    finish();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string(error.what()) + "; the lines and values that waited are lost");
  }
}

void StepLines::append(const StepRecord& record) {
  write_or_wait(lines_wait_, "lines of steps", record.step, [&] { steps_.append(record); });
  write_or_wait(values_wait_, "values of the monitors", record.step,
                [&] { monitors_.append(record); });
}

void StepLines::sync() {
  if (sync_error_) return;
  try {
    steps_.sync();
  } catch (const IoError& error) {
    sync_error_ = std::current_exception();
    log(LogLevel::error,
        std::string(error.what()) + "; lines of steps may be lost, and the training goes on");
  }
}

void StepLines::finish() {
  lines_wait_ = values_wait_ = false;
  steps_.finish();
  monitors_.finish();
  if (sync_error_) std::rethrow_exception(sync_error_);
}

}  // namespace sluice::train
