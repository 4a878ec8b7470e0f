// Plans in fp16.

#include <gtest/gtest.h>

#include "plans.hpp"
#include "sluice/plan/make_plan.hpp"

namespace sluice::plan {
namespace {

TEST(Fp16Plan, EveryGradientHasAHomeAlsoWithoutClipping) {
  auto config = train_config(Device::cpu, Device::cpu, 1024, 512);
  config.gradient_clipping = 0;
  const auto model = model_config(8, 256);
  const Plan bf16 = make_plan(config, model, Placement::configured, roomy_machine());
  ASSERT_GT(bf16.rings.gradient_slots, 0);
  config.bf16 = false;
  config.fp16.enabled = true;
  const Plan fp16 = make_plan(config, model, Placement::configured, roomy_machine());
  EXPECT_EQ(fp16.compute_dtype, DType::fp16);
  EXPECT_EQ(fp16.rings.gradient_slots, 0) << "an overflow skips them all, so all wait";
  for (const UnitPlacement& unit : fp16.units) EXPECT_FALSE(unit.gradients_use_slots);
  EXPECT_FALSE(fp16.state_format.is_split()) << "fp16 is not the upper half of fp32";
  config.gradient_clipping = 1;
  const Plan clipped = make_plan(config, model, Placement::configured, roomy_machine());
  EXPECT_EQ(fp16.planned.tiers.host, clipped.planned.tiers.host);
}

}  // namespace
}  // namespace sluice::plan
