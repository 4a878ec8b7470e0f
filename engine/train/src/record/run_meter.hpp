#pragma once
// RunMeter: turns the counters of the links into bytes, stalls and busy seconds of each step. It
// attributes them to the step that caused them: a step's updates run during the next step's
// forward, so the meter counts the two apart.

#include <string>
#include <vector>

#include "measure/last_values.hpp"
#include "measure/slowdown.hpp"
#include "sluice/train/report.hpp"
#include "step/run_resources.hpp"
#include "step/step_runner.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class RunMeter {
 public:
  RunMeter(RunResources& resources, const StepRunner& runner);
  // Starts counting: bytes that brought in the states are not counted.
  void start();
  // Called when forward and backward of a step have ended and its updates have begun. No transfer
  // of forward or backward is in flight.
  void end_backward();
  // Called around an evaluation, with no transfer in flight. Its bytes and its links' busy time
  // belong to no step.
  void begin_evaluation();
  void end_evaluation();
  // Called when the updates of the pending step have ended. Fills in the record's bytes and stalls;
  // the rest of its seconds is computing.
  void end_updates(StepRecord& record);
  // Fills in the peaks and the limits: each link's limit is the median of its busy seconds over the
  // last steps.
  void fill(RunReport& report) const;
  // The numbers of this rank: busy and stall seconds of a step in the median, bytes of the last
  // step, peaks, and the bytes of its part of the optimizer states.
  RankNumbers numbers() const;

 private:
  void fill_drives(RunReport& report) const;
  // Totals since the process began.
  struct Totals {
    LinkBytes bytes;  // without the updater's
    UpdateCounters update;
    RunnerStalls stalls;
    LinkSeconds busy;
  };
  Totals totals() const;
  static constexpr std::size_t kKeptSteps = 512;
  // `checkpoint_bytes` were read beside the record's.
  void watch_drive(const StepRecord& record, std::uint64_t checkpoint_bytes,
                   const LinkSeconds& busy);
  LinkSeconds stalls_between(const RunnerStalls& before, const RunnerStalls& after) const;

  RunResources& resources_;
  const StepRunner& runner_;
  Totals backward_;         // at the last end_backward() or end_evaluation()
  UpdateCounters updated_;  // at the last end_updates()
  StepRecord pending_;      // bytes and stalls so far of the step whose updates run
  LinkSeconds busy_;        // at the last end_updates(), or later by what evaluations took
  LinkSeconds busy_before_evaluation_;
  LastValues<LinkSeconds> step_busy_{kKeptSteps};
  LastValues<LinkSeconds> step_stalls_{kKeptSteps};
  std::uint64_t step_network_bytes_ = 0;  // of the last step
  SlowdownWatch drive_;
  std::vector<std::string> notices_;
};

// Logs a warning when one drive was busy much longer than the others.
void warn_of_slow_drive(const RunReport& report);

}  // namespace sluice::train
