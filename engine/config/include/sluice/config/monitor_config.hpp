#pragma once
// DeepSpeed's monitors and breakdowns: files and lines of `sluice train` about its steps, beside
// steps.jsonl. Thread-compatible: plain values.

#include <cstdint>
#include <string>

namespace sluice::config {

// The sections "tensorboard" and "csv_monitor".
struct MonitorFiles {
  bool enabled = false;
  std::string output_path;  // empty: the working folder
  std::string job_name = "DeepSpeedJobName";

  // The folder of the files.
  std::string directory() const {
    const std::string name = job_name.empty() ? "." : job_name;
    return output_path.empty() ? name : output_path + "/" + name;
  }
};

// The section "flops_profiler".
struct FlopsProfilerConfig {
  bool enabled = false;             // wall_clock_breakdown is on then
  std::int64_t profile_step = 1;    // steps before the one that is profiled
  double recompute_fwd_factor = 0;  // forwards that a backward repeats
  bool detailed = true;             // with a table of the model's parts
  std::string output_file;          // empty: standard output
};

struct MonitorsConfig {
  MonitorFiles tensorboard;
  MonitorFiles csv;
  bool wall_clock_breakdown = false;  // a line of times after every step
  bool memory_breakdown = false;      // lines of memory after every step
  bool throughput = true;             // with steps_per_print: a line of samples per second
  FlopsProfilerConfig flops_profiler;
};

}  // namespace sluice::config
