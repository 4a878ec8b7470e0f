#include "train/deepspeed_lines.hpp"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

train::StepRecord record_of(std::int64_t step, double seconds) {
  train::StepRecord record;
  record.step = step;
  record.seconds = seconds;
  record.parts.forward_seconds = 0.1;
  record.parts.backward_seconds = 0.25;
  record.parts.device_bytes = 1ULL << 30U;
  record.parts.device_peak_bytes = 3ULL << 29U;
  record.parts.device_held_bytes = 2ULL << 30U;
  return record;
}

TEST(Throughput, IsWrittenInDeepSpeedsWordsWithoutTheFirstTwoSteps) {
  Throughput throughput;
  throughput.add(record_of(41, 9), 32, 4);
  throughput.add(record_of(42, 9), 32, 4);
  EXPECT_EQ(throughput.line(),
            "epoch=0/micro_step=8/global_step=42, RunningAvgSamplesPerSec=-inf, "
            "CurrSamplesPerSec=3.5555555555555554, MemAllocated=1.00GB, MaxMemAllocated=1.50GB");
  throughput.add(record_of(43, 1), 32, 4);
  throughput.add(record_of(44, 3), 32, 4);
  EXPECT_EQ(throughput.line(),
            "epoch=0/micro_step=16/global_step=44, RunningAvgSamplesPerSec=16, "
            "CurrSamplesPerSec=10.666666666666666, MemAllocated=1.00GB, MaxMemAllocated=1.50GB");
}

TEST(TimesLine, HasThePartsOfAStepWhichAddUp) {
  EXPECT_EQ(times_line(record_of(1, 0.5)),
            "time (ms) | fwd: 100.00 | bwd: 250.00 | bwd_inner: 250.00 | bwd_allreduce: 0.00 | "
            "step: 150.00");
}

TEST(MemoryLines, HaveTheDeviceAndTheMachine) {
  EXPECT_EQ(memory_lines(record_of(7, 1), 16ULL << 30U, 12ULL << 30U),
            "after step 7\nMA 1.00 GB         Max_MA 1.50 GB         CA 2.00 GB\n"
            "CPU Virtual Memory:  used = 4.00 GB, percent = 25.0%");
  EXPECT_NE(memory_lines(record_of(7, 1), 0, 0).find("percent = 0.0%"), std::string::npos);
}

}  // namespace
}  // namespace sluice::cli
