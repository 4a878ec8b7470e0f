#pragma once
// DeepSpeed's monitors and breakdowns: files and lines of `sluice train` about its steps, beside
// steps.jsonl. Thread-compatible: plain values.

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

struct MonitorsConfig {
  MonitorFiles tensorboard;
  MonitorFiles csv;
  bool wall_clock_breakdown = false;  // a line of times after every step
  bool memory_breakdown = false;      // lines of memory after every step
  bool throughput = true;             // with steps_per_print: a line of samples per second
};

}  // namespace sluice::config
