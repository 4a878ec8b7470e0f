#pragma once
// Lines about a step in the words of DeepSpeed's log, for programs that read them there.

#include <cstdint>
#include <string>

#include "sluice/train/report.hpp"

namespace sluice::cli {

// Samples per second since a process began. Confined to thread: the training thread.
class Throughput {
 public:
  // A step of `samples`, in `micro_batches`.
  void add(const train::StepRecord& record, std::int64_t samples, std::int64_t micro_batches);
  // "epoch=0/micro_step=80/global_step=10, RunningAvgSamplesPerSec=..., CurrSamplesPerSec=...,
  // MemAllocated=...GB, MaxMemAllocated=...GB". As in DeepSpeed the average leaves out the first
  // two steps of the process.
  std::string line() const;

 private:
  train::StepRecord last_;
  std::int64_t samples_ = 0;  // of a step
  std::int64_t steps_ = 0;
  std::int64_t micro_steps_ = 0;
  double seconds_ = 0;  // of the steps after the second
};

// wall_clock_breakdown: "time (ms) | fwd: 12.34 | bwd: ... | bwd_inner: ... | bwd_allreduce: ... |
// step: ...".
std::string times_line(const train::StepRecord& record);

// memory_breakdown: device memory, then that of the machine. `total_bytes`, `available_bytes`: of
// the machine's memory.
std::string memory_lines(const train::StepRecord& record, std::uint64_t total_bytes,
                         std::uint64_t available_bytes);

}  // namespace sluice::cli
