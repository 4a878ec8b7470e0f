// "pin_memory": true: what a run locks.

#include <gtest/gtest.h>

#include "sluice/base/bytes.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/plan/make_plan.hpp"
#include "step/run_resources.hpp"
#include "train/step/small_run.hpp"

namespace sluice::train {
namespace {

// Bytes this process has locked.
std::uint64_t locked_bytes() {
  return proc_bytes("/proc/self/status", {"VmLck"}).value_or(0);
}

TEST(PinnedMemory, IsExactlyWhatIsPlanned) {
  config::TrainConfig config = test::small_config();
  config.gradient_clipping = 1;  // every gradient waits in host memory
  config.zero.offload_optimizer.pin_memory = config.zero.offload_param.pin_memory = true;
  config::ModelConfig model = test::small_model();
  model.n_layer = 3;
  model.n_embd = 72;  // no part of a unit fills whole pages
  model.vocab_size = 251;
  const plan::Plan plan =
      plan::make_plan(config, model, plan::Placement::configured, plan::probe_machine(config));
  ASSERT_GT(plan.planned.pinned_bytes, 0U);
  const std::uint64_t before = locked_bytes();
  {
    RunResources resources = test::make_resources(plan, {SwapMode::create});
    EXPECT_EQ(locked_bytes() - before, align_up(plan.planned.pinned_bytes, offload::kPageBytes));
    EXPECT_EQ(resources.pinned_pool->usage().live_bytes, plan.planned.pinned_bytes);
    EXPECT_EQ(resources.host_pool->usage().live_bytes, plan.planned.pinned_bytes);
  }
  EXPECT_EQ(locked_bytes(), before);
}

}  // namespace
}  // namespace sluice::train
