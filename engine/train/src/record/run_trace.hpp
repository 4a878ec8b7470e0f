#pragma once
// RunTrace: the trace of a run (sluice train --trace): its file, its rows in the order in which
// they are shown, and the range of steps that it records.

#include <memory>
#include <optional>

#include "sluice/base/trace.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class RunTrace {
 public:
  RunTrace() = default;  // no trace
  // The trace that `request` asks for, of a run that begins with `first_step`. A resumed run leaves
  // the trace of its earlier part as it is; when that has all the steps, there is no other one.
  // Throws the errors of Trace.
  RunTrace(const TrainRequest& request, std::int64_t first_step);

  // For the components; null when there is none.
  Trace* trace() const { return trace_.get(); }
  void begin_step(std::int64_t step);
  // Records the step, from `begin` until now.
  void end_step(const StepRecord& record, TraceClock::time_point begin);
  void end_commit(std::int64_t step, TraceClock::time_point begin);
  const TraceRow& evaluations() const { return evaluations_; }

 private:
  std::unique_ptr<Trace> trace_;
  std::optional<TrainRequest::Steps> limits_;
  TraceRow steps_;
  TraceRow commits_;
  TraceRow evaluations_;
};

}  // namespace sluice::train
