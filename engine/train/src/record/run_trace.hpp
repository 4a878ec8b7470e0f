#pragma once
// RunTrace: the trace of a run (sluice train --trace), if there is one: its file, its rows in the
// order in which they are shown, and from which step to which it records.

#include <memory>
#include <optional>

#include "sluice/base/trace.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class RunTrace {
 public:
  RunTrace() = default;  // no trace
  // The one that `request` asks for; of an earlier part of a resumed run the old one is kept.
  // Throws as Trace.
  explicit RunTrace(const TrainRequest& request);

  // For the components; null when there is none.
  Trace* trace() const { return trace_.get(); }
  void begin_step(std::int64_t step);
  // From `begin` until now.
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
