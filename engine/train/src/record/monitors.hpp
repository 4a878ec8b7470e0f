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
#include "sluice/config/train_config.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/train/report.hpp"

namespace sluice::train {

// The horizontal axis: samples so far. Behind a resume with another batch it goes on from where it
// was, so that each step has its own place on it.
struct SamplesAxis {
  // NOLINTNEXTLINE(google-explicit-constructor): a batch alone is the axis of a new run
  SamplesAxis(std::int64_t batch, std::int64_t samples_at_step_0 = 0)
      : per_step(batch), at_step_0(samples_at_step_0) {}

  std::int64_t per_step;
  std::int64_t at_step_0;  // not 0 behind a resume with another batch; may be negative

  std::int64_t at(std::int64_t step) const { return at_step_0 + step * per_step; }
};

// The axis of a run with this batch, behind the step of the state that it resumes; null: a new run.
// A state of an older version may have no batch; then it had this one.
SamplesAxis axis_behind(const models::RunState* resumed, const config::TrainConfig& config);

// A setting of the run, which its states keep, and its value.
inline constexpr const char* kBatchSetting = "batch";
std::string batch_text(const config::TrainConfig& config);
// Adds what axis_behind() reads to these settings.
void note_axis(const SamplesAxis& axis, const config::TrainConfig& config,
               models::RunSettings& settings);

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
  // A file that has no row up to it is renamed as one of an earlier run, where that of the learning
  // rates has none either.
  // Throws IoError; StorageError when another run writes to a CSV file. Then there is no new file
  // of TensorBoard.
  Monitors(const config::MonitorsConfig& config, std::int64_t committed_step,
           const SamplesAxis& axis);
  // Throws IoError when a file cannot be written; its values wait for the next call, and those of
  // the other files are written.
  void append(const StepRecord& record);
  // Writes the values that wait, and finishes the files as AppendFile::finish. Throws IoError.
  void finish();

 private:
  void open_rows();
  void write(const std::function<void()>& events, const std::function<void(LineFile&)>& lines);
  LineFile& csv_of(const std::string& tag);
  std::string csv_path(const std::string& tag) const;

  config::MonitorsConfig config_;
  SamplesAxis axis_;
  std::int64_t committed_samples_;
  bool files_are_of_this_run_ = false;
  std::optional<EventFile> events_;
  std::map<std::string, LineFile> csv_;          // by tag
  std::map<std::string, std::string> new_rows_;  // by tag: rows whose file has not taken them yet
};

}  // namespace sluice::train
