#include "train/deepspeed_lines.hpp"

#include <algorithm>

#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr std::int64_t kWarmupSteps = 2;  // DeepSpeed's ThroughputTimer leaves them out

std::string gigabytes(std::uint64_t size_bytes) {
  return format_number("%.2f", static_cast<double>(size_bytes) / (1024.0 * 1024 * 1024));
}

std::string per_second(double samples, double seconds) {
  return seconds > 0 ? format_number("%.17g", samples / seconds) : "-inf";
}

}  // namespace

void Throughput::add(const train::StepRecord& record, std::int64_t samples,
                     std::int64_t micro_batches) {
  last_ = record;
  samples_ = samples;
  micro_steps_ += micro_batches;
  if (++steps_ > kWarmupSteps) seconds_ += record.seconds;
}

std::string Throughput::line() const {
  const auto samples = static_cast<double>(samples_);
  const auto counted = static_cast<double>(steps_ - kWarmupSteps);
  return "epoch=0/micro_step=" + std::to_string(micro_steps_) +
         "/global_step=" + std::to_string(last_.step) +
         ", RunningAvgSamplesPerSec=" + per_second(samples * counted, seconds_) +
         ", CurrSamplesPerSec=" + per_second(samples, last_.seconds) +
         ", MemAllocated=" + gigabytes(last_.parts.device_bytes) +
         "GB, MaxMemAllocated=" + gigabytes(last_.parts.device_peak_bytes) + "GB";
}

std::string times_line(const train::StepRecord& record) {
  const auto part = [](const char* name, double seconds) {
    return std::string(" | ") + name + ": " + format_number("%.2f", 1e3 * seconds);
  };
  return "time (ms)" + part("fwd", record.parts.forward_seconds) +
         part("bwd", record.parts.backward_seconds) +
         part("bwd_inner", record.parts.backward_seconds) + part("bwd_allreduce", 0) +
         part("step", record.step_seconds());
}

std::string memory_lines(const train::StepRecord& record, std::uint64_t total_bytes,
                         std::uint64_t available_bytes) {
  const std::uint64_t used = total_bytes - std::min(available_bytes, total_bytes);
  const double share =
      total_bytes > 0 ? 100 * static_cast<double>(used) / static_cast<double>(total_bytes) : 0;
  return "after step " + std::to_string(record.step) + "\nMA " +
         gigabytes(record.parts.device_bytes) + " GB         Max_MA " +
         gigabytes(record.parts.device_peak_bytes) + " GB         CA " +
         gigabytes(record.parts.device_held_bytes) +
         " GB\nCPU Virtual Memory:  used = " + gigabytes(used) +
         " GB, percent = " + format_number("%.1f", share) + "%";
}

}  // namespace sluice::cli
