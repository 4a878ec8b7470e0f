#include "train/train_monitors.hpp"

#include <string>

namespace sluice::config {

namespace {

MonitorFiles read_files(Checker& checker, const std::string& section) {
  MonitorFiles files;
  checker.read(section + ".enabled", files.enabled);
  if (!files.enabled) return files;
  checker.read(section + ".output_path", files.output_path);
  checker.read(section + ".job_name", files.job_name);
  return files;
}

FlopsProfilerConfig read_flops_profiler(Checker& checker) {
  FlopsProfilerConfig profiler;
  checker.read("flops_profiler.enabled", profiler.enabled);
  if (!profiler.enabled) return profiler;
  checker.read("flops_profiler.profile_step", profiler.profile_step);
  checker.read("flops_profiler.recompute_fwd_factor", profiler.recompute_fwd_factor);
  checker.read("flops_profiler.detailed", profiler.detailed);
  checker.read("flops_profiler.output_file", profiler.output_file);
  return profiler;
}

}  // namespace

MonitorsConfig read_monitors(Checker& checker) {
  MonitorsConfig monitors;
  monitors.tensorboard = read_files(checker, "tensorboard");
  monitors.csv = read_files(checker, "csv_monitor");
  checker.read("wall_clock_breakdown", monitors.wall_clock_breakdown);
  checker.read("memory_breakdown", monitors.memory_breakdown);
  checker.read("timers.throughput.enabled", monitors.throughput);
  monitors.flops_profiler = read_flops_profiler(checker);
  if (monitors.flops_profiler.enabled && !monitors.wall_clock_breakdown) {
    monitors.wall_clock_breakdown = true;
    checker.add_note("wall_clock_breakdown", "on, since flops_profiler needs its times");
  }
  return monitors;
}

}  // namespace sluice::config
