#include "train/train_monitors.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "sluice/base/text.hpp"

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

constexpr std::string_view kOperations[] = {
    "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",
    "scatter",    "gather",         "send",       "receive",   "barrier"};

// The name of an operation that DeepSpeed calls `name`.
std::string our_name(const std::string& name) {
  if (name == "all_gather_into_tensor") return "all_gather";
  if (name == "reduce_scatter_tensor") return "reduce_scatter";
  return name == "recv" ? "receive" : name;
}

CommsLoggerConfig read_comms_logger(Checker& checker) {
  CommsLoggerConfig logger;
  checker.read("comms_logger.enabled", logger.enabled);
  if (!logger.enabled) return logger;
  checker.read("comms_logger.verbose", logger.verbose);
  checker.read("comms_logger.prof_all", logger.prof_all);
  checker.read("comms_logger.debug", logger.debug);
  constexpr const char* kPath = "comms_logger.prof_ops";
  const Json::Value* const operations = checker.find(kPath);
  if (operations == nullptr) return logger;
  for (const Json::Value& operation : *operations) {
    const std::string name = operation.isString() ? our_name(operation.asString()) : "";
    if (!contains(kOperations, name)) {
      checker.add_note(kPath, checker.shown(operation) + " names no operation; they are " +
                                  join(kOperations, ", "));
      continue;
    }
    logger.prof_ops.push_back(name);
  }
  return logger;
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
  monitors.comms_logger = read_comms_logger(checker);
  if (monitors.flops_profiler.enabled && !monitors.wall_clock_breakdown) {
    monitors.wall_clock_breakdown = true;
    checker.add_note("wall_clock_breakdown", "on, since flops_profiler needs its times");
  }
  return monitors;
}

}  // namespace sluice::config
