#include "record/run_trace.hpp"

#include <string>

#include "record/steps_file.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

RunTrace::RunTrace(const TrainRequest& request, std::int64_t first_step)
    : limits_(request.trace_steps) {
  if (request.trace_path.empty()) return;
  if (request.resume && limits_ && first_step > limits_->last) {
    log(LogLevel::info, "--trace: the run goes on after the steps of --trace-steps; " +
                            request.trace_path + " is left as it is");
    return;
  }
  // Often where the trace is to be.
  if (!request.report_dir.empty()) make_directory(request.report_dir);
  trace_ = std::make_unique<Trace>(request.trace_path,
                                   request.resume ? Trace::Old::keep : Trace::Old::replace);
  trace_->set_recording(!limits_);
  // Made here, in the order in which they are to be shown; the components ask for them by name.
  for (const char* name : {"step", "compute", "stalls", "gather", "h2d", "d2h", "update", "read",
                           "write", "commit", "checkpoint", "evaluation"})
    trace_->row(name);
  steps_ = TraceRow(trace_.get(), "step");
  commits_ = TraceRow(trace_.get(), "commit");
  evaluations_ = TraceRow(trace_.get(), "evaluation");
}

void RunTrace::begin_step(std::int64_t step) {
  if (!trace_ || !limits_) return;
  if (limits_->first <= step && step <= limits_->last) trace_->set_recording(true);
}

void RunTrace::end_step(const StepRecord& record, TraceClock::time_point begin) {
  if (!trace_) return;
  steps_.add("step", std::to_string(record.step), begin, TraceClock::now(),
             {{"step", record.step}, {"tokens", static_cast<std::int64_t>(record.tokens)}});
  trace_->flush();
}

// The updates of the last step run until it is committed.
void RunTrace::end_commit(std::int64_t step, TraceClock::time_point begin) {
  if (!trace_) return;
  commits_.add("commit", std::to_string(step), begin, TraceClock::now(), {{"step", step}});
  if (limits_ && step >= limits_->last) trace_->set_recording(false);
}

}  // namespace sluice::train
