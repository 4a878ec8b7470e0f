#pragma once
// RunMeter: turns the counters of the links into bytes, stalls and busy seconds of each step,
// attributed to the step that caused them: a step's updates run while the next step's forward does,
// so both are told apart.

#include "run_resources.hpp"
#include "sluice/train/report.hpp"
#include "step_runner.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class RunMeter {
 public:
  RunMeter(RunResources& resources, const StepRunner& runner);
  // Counting begins here; what bringing in the states moved is left out.
  void start();
  // Nothing is in flight: forward and backward of a step have ended.
  void end_backward();
  // An evaluation has ended; its bytes belong to the pending step.
  void end_evaluation();
  // The updates of the pending step have ended: fills in its bytes and stalls.
  void end_updates(StepRecord& record);
  // Peaks and, as busy seconds per step, the limits of the links.
  void fill(RunReport& report) const;

 private:
  // Totals since the process began.
  struct Totals {
    LinkBytes bytes;  // without the updater's
    UpdateCounters update;
    RunnerStalls stalls;
    LinkSeconds busy;
  };
  Totals totals() const;
  LinkSeconds stalls_between(const RunnerStalls& before, const RunnerStalls& after) const;

  RunResources& resources_;
  const StepRunner& runner_;
  Totals begin_;            // at start()
  Totals backward_;         // at the last end_backward() or end_evaluation()
  UpdateCounters updated_;  // at the last end_updates()
  StepRecord pending_;      // what is known of the step whose updates run
  std::int64_t steps_ = 0;
  double seconds_ = 0;
  double stall_seconds_ = 0;
};

}  // namespace sluice::train
