#pragma once
// The report of a run, put together from what it counted. Not installed.

#include <cstdint>
#include <optional>
#include <vector>

#include "measure/last_values.hpp"
#include "record/memory_sampler.hpp"
#include "record/run_meter.hpp"
#include "run/run_setup.hpp"
#include "sluice/train/library.hpp"
#include "step/progress.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

// Totals over the steps of this process; steps before a resume are not counted.
struct RunTally {
  StartSeconds start;
  Progress begun_from;  // when the run began, or was resumed
  std::int64_t steps = 0;
  double seconds = 0;                     // of these steps
  LastValues<double> last_seconds{4096};  // of the last steps, each
  std::uint64_t tokens = 0;
  std::int64_t skipped = 0;   // steps
  double commit_seconds = 0;  // writing the lines of steps, and committing them
  LinkBytes last_bytes;       // of the last step
  std::optional<double> last_loss;
  std::optional<double> eval_loss;  // of the last evaluation that ended
  bool evaluation_cut = false;      // a signal ended the last evaluation

  // Counts a step whose updates have ended.
  void add(const StepRecord& record);
};

// Sources of the report's numbers.
struct ReportSources {
  const TrainRequest& request;
  const RunSetup& setup;
  const RunResources& resources;
  const RunMeter& meter;
  const MemorySampler& sampler;
  const RunTally& tally;
  const Progress& progress;
  int stopped_by_signal = 0;  // see RunReport
};
RunReport make_report(const ReportSources& from);

}  // namespace sluice::train
