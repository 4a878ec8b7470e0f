#pragma once
// Monitors: the scalars of every step for TensorBoard and as CSV, by DeepSpeed's names and with its
// horizontal axis: samples so far.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "record/event_file.hpp"
#include "record/line_file.hpp"
#include "sluice/config/monitor_config.hpp"
#include "sluice/train/report.hpp"

namespace sluice::train {

// The scalars of a step's record: train_loss, lr, grad_norm, where present loss_scale and
// eval_loss, and with `times` the milliseconds of its parts.
std::vector<Scalar> scalars_of(const StepRecord& record, bool times);

// A number as Python prints it: the shortest digits that read back equal.
std::string python_number(double value);

// Confined to the thread that trains.
class Monitors {
 public:
  // Opens the files of the monitors that are on. Steps after `committed_step` in files of earlier
  // processes of the run no longer count: CSV rows are cut off, and TensorBoard drops the events.
  // `samples_per_step`: the training batch. Throws IoError; StorageError when another run writes to
  // a CSV file.
  Monitors(const config::MonitorsConfig& config, std::int64_t committed_step,
           std::int64_t samples_per_step);
  // Throws IoError when a file cannot be written; its values wait for the next call, and those of
  // the other files are written.
  void append(const StepRecord& record);
  // Writes the values that wait, and finishes the files as AppendFile::finish. Throws IoError.
  void finish();

 private:
  void write(const std::function<void()>& events, const std::function<void(LineFile&)>& lines);
  LineFile& csv_of(const std::string& tag);
  std::string csv_path(const std::string& tag) const;

  config::MonitorsConfig config_;
  std::int64_t committed_samples_;
  std::int64_t samples_per_step_;
  std::optional<EventFile> events_;
  std::map<std::string, LineFile> csv_;          // by tag
  std::map<std::string, std::string> new_rows_;  // by tag: rows whose file has not taken them yet
};

}  // namespace sluice::train
