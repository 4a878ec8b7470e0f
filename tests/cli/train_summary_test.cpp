#include "train/train_summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/base/bytes.hpp"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

TEST(RunSummary, LinesUpBudgetPlannedAndPeak) {
  train::RunReport report;
  report.memory.budget = {64 * kMiB, 0, 0};
  report.memory.planned = {60 * kMiB, kGiB, 0};
  report.memory.peak = {59 * kMiB, kGiB, 0};
  report.speed.bound_by = "nvme_read";
  report.speed.step_seconds = 2;
  report.speed.limits.nvme_read = 1.5;
  report.last_step = 7;
  report.committed_step = 6;
  report.losses.last = 1.5;
  const std::string text = run_summary(report);
  EXPECT_THAT(text, HasSubstr("tier       budget   planned      peak\n"
                              "device   64.0 MiB  60.0 MiB  59.0 MiB\n"
                              "host            -  1.00 GiB  1.00 GiB\n"));
  EXPECT_THAT(text, HasSubstr("nvme read              1.500             75 %\n"));
  EXPECT_THAT(text, HasSubstr("bound by nvme_read: a step takes 2.000 s (median)"));
  EXPECT_THAT(text, HasSubstr("step 7, committed 6; loss of this step 1.5000\n"));
}

TEST(RunSummary, LeavesTheLimitsOutWhenNoStepWasMade) {
  train::RunReport report;
  report.last_step = report.committed_step = 60;
  const std::string text = run_summary(report);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("bound by")));
  EXPECT_THAT(text, HasSubstr("step 60, committed 60\n"));
}

TEST(NextSteps, NameTheDirectoryThatHoldsTheStates) {
  train::RunReport report;
  report.committed_step = 5;
  plan::Plan plan;
  plan.directories.states = {"/mnt/my swap"};
  const std::string text = next_steps("bin/sluice", report, plan, "model.json");
  EXPECT_THAT(text, HasSubstr("bin/sluice export '/mnt/my swap' --out weights.safetensors"));
  EXPECT_THAT(
      text,
      HasSubstr("bin/sluice generate --model model.json --weights '/mnt/my swap' --prompt TEXT"));
}

TEST(NextSteps, FallBackToTheCheckpoints) {
  train::RunReport report;
  report.committed_step = 5;
  plan::Plan plan;
  plan.config.sluice.checkpoints.directory = "saved";
  plan.placement = plan::Placement::resident;
  EXPECT_THAT(next_steps("bin/sluice", report, plan, "m"), HasSubstr("bin/sluice export saved"));
}

TEST(NextSteps, WorkForDirectoriesThatAreNoPlainArguments) {
  train::RunReport report;
  report.committed_step = 5;
  plan::Plan plan;
  plan.directories.states = {"."};
  EXPECT_THAT(next_steps("sluice", report, plan, "m"),
              HasSubstr("sluice export . --out ../weights.safetensors\n"));
  plan.directories.states.clear();
  plan.config.sluice.checkpoints.directory = "-saved";
  const std::string text = next_steps("sluice", report, plan, "m");
  EXPECT_THAT(text, HasSubstr("sluice export ./-saved --out weights.safetensors\n"));
  EXPECT_THAT(text, HasSubstr("--weights ./-saved "));
}

TEST(NextSteps, SaySoWhenNothingIsKept) {
  train::RunReport report;
  plan::Plan plan;
  plan.directories.states = {"swap"};
  EXPECT_THAT(next_steps("bin/sluice", report, plan, "m"), HasSubstr("not kept"))
      << "nothing was committed";
  report.committed_step = 5;
  plan.directories.states.clear();
  EXPECT_THAT(next_steps("bin/sluice", report, plan, "m"), HasSubstr("not kept"));
}

}  // namespace
}  // namespace sluice::cli
