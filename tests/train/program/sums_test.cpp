// Gradients summed in fp32 while the model computes in 16 bits, by the program: their bytes, and a
// resumed run that changes the type. stand_in_gpu_run_test.cpp compares the placements.

#include <gtest/gtest.h>

#include "train_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 6;
constexpr const char* kFp32Sums = "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}, ";

TrainSetup summing_in_fp32() {
  TrainSetup setup;
  setup.more_keys = kFp32Sums;
  return setup;
}

// Gradients leave the device once a step: 2 bytes of a parameter, or 4.
TEST(Fp32Sums, TakeTwiceTheBytesOnTheirWay) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = "cpu";
  setup.param_device = "cpu";
  const auto bytes = [&] {
    outcome_of(folder, setup, kSteps);
    return std::stoull(column(folder, "report", "d2h").back());
  };
  const unsigned long long in_bf16 = bytes();
  const Json::Value before = report_of(folder);
  setup.more_keys = kFp32Sums;
  const unsigned long long in_fp32 = bytes();
  const Json::Value after = report_of(folder);
  // The tied embedding's gradient leaves twice; each way is as long again.
  EXPECT_EQ(in_fp32, 2 * in_bf16);
  const std::uint64_t parameters = after["parameters"].asUInt64();
  EXPECT_GE(after["planned_bytes"]["host"].asUInt64(),
            before["planned_bytes"]["host"].asUInt64() + 2 * parameters);
}

TEST(Fp32Sums, ThatAResumedRunChangesAreNamed) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  folder.set(summing_in_fp32());
  const ProgramResult resumed = folder.train("report", 4, {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed with another type of gradient sums: was bf16; is fp32"),
            std::string::npos)
      << resumed.err;
}

}  // namespace
}  // namespace sluice::test
