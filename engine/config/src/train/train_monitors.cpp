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

}  // namespace

MonitorsConfig read_monitors(Checker& checker) {
  MonitorsConfig monitors;
  monitors.tensorboard = read_files(checker, "tensorboard");
  monitors.csv = read_files(checker, "csv_monitor");
  checker.read("wall_clock_breakdown", monitors.wall_clock_breakdown);
  checker.read("memory_breakdown", monitors.memory_breakdown);
  checker.read("timers.throughput.enabled", monitors.throughput);
  return monitors;
}

}  // namespace sluice::config
