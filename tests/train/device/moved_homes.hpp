#pragma once
// Runs of plans of which a test moves some bytes to another home: they have the same bits.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device_run.hpp"
#include "sluice/plan/tile_layout.hpp"

namespace sluice::train::test {

// Settings of a run that a RunCase leaves open.
struct Steps {
  std::int64_t micro_batches = 3;
  bool fp32 = false;
};

class MovedHomes : public DeviceRun {
 protected:
  static constexpr int kSteps = 4;

  static void expect_same(const StepResults& results, const StepResults& expected) {
    test::expect_same(results, expected);
    EXPECT_TRUE(results.updated.back());
  }

  plan::Plan plan_of_case(const RunCase& each, const Steps& steps = {}) const {
    config::TrainConfig config = config_of(each);
    config.gradient_accumulation_steps = steps.micro_batches;
    config.train_batch_size = config.micro_batch_size * steps.micro_batches;
    config.sluice.passes.each = each.per_pass.value_or(steps.micro_batches);
    if (steps.fp32) config.bf16 = false;
    plan::Plan plan =
        plan::make_plan(config, model_of(each), each.placement, machine_of(each, true));
    if (each.halves_in_weights) leave_halves_to_weights(plan);
    return plan;
  }
  // After homes have moved: tiles for them, several of a unit, and memory.
  static void fit_to_homes(plan::Plan& plan) {
    constexpr std::uint64_t kMore = 32U << 20U;
    plan.rings.update.tile_elements = 8192;
    plan.rings.update.tile_bytes =
        plan::tile_layout(plan.units, plan.state_format,
                          {plan.compute_dtype, plan.config.gradient_dtype()},
                          plan.rings.update.tile_elements)
            .total;
    plan.planned.tiers.host += kMore;
    plan.planned.pinned_bytes += kMore;
    plan.planned.tiers.device += kMore;
  }
  // The results of kSteps steps.
  StepResults run(const plan::Plan& plan) const {
    RunResources resources(plan, {SwapMode::create}, nullptr,
                           make_stand_in_gpu(plan.planned.tiers.device));
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    Progress progress;
    progress.loss_scaler = LossScaler(plan.config.fp16);
    StepResults results;
    take_steps(resources, runner, progress, kSteps, results);
    results.weights = weights_of(resources);
    return results;
  }
  void take_steps(RunResources& resources, StepRunner& runner, Progress& progress, int count,
                  StepResults& results) const {
    for (int i = 0; i < count; ++i) {
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward = runner.forward_backward(
          data(), progress.step + 1, progress.loss_scaler.scale(), update, [] {});
      results.losses.push_back(backward.loss);
      results.norms.push_back(backward.gradient_norm);
      results.updated.push_back(runner.end_step(backward, update, progress).updated);
    }
    runner.finish_updates();
  }
};

}  // namespace sluice::train::test
