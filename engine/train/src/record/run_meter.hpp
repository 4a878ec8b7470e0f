#pragma once
// RunMeter: turns the counters of the links into bytes, stalls and busy seconds of each step,
// attributed to the step that caused them: a step's updates run while the next step's forward does,
// so both are told apart.

#include <deque>
#include <string>
#include <vector>

#include "measure/slowdown.hpp"
#include "sluice/train/report.hpp"
#include "step/run_resources.hpp"
#include "step/step_runner.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class RunMeter {
 public:
  RunMeter(RunResources& resources, const StepRunner& runner);
  // Counting begins here; what bringing in the states moved is left out.
  void start();
  // Forward and backward of a step have ended, and its updates begun; of what forward and backward
  // moved nothing is in flight.
  void end_backward();
  // An evaluation begins, with nothing in flight, and has ended. Its bytes, and the time that links
  // were busy for it, belong to no step.
  void begin_evaluation();
  void end_evaluation();
  // The updates of the pending step have ended: fills in its bytes, its stalls, and as the
  // computing what is left of its seconds.
  void end_updates(StepRecord& record);
  // Peaks and, as the median over the last steps of the seconds that each link was busy, the
  // limits.
  void fill(RunReport& report) const;

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
  static constexpr std::size_t kKeptSteps = 4096;
  void watch_drive(const StepRecord& record, const LinkSeconds& busy);
  LinkSeconds stalls_between(const RunnerStalls& before, const RunnerStalls& after) const;

  RunResources& resources_;
  const StepRunner& runner_;
  Totals backward_;         // at the last end_backward() or end_evaluation()
  UpdateCounters updated_;  // at the last end_updates()
  StepRecord pending_;      // what is known of the step whose updates run
  LinkSeconds busy_;        // at the last end_updates(), or later by what evaluations took
  LinkSeconds busy_before_evaluation_;
  std::deque<LinkSeconds> step_busy_;  // of the last kKeptSteps steps
  SlowdownWatch drive_;
  std::vector<std::string> notices_;
};

// Logs it where one drive was busy much longer than the others.
void warn_of_slow_drive(const RunReport& report);

}  // namespace sluice::train
