// Plans in fp16, and the bytes of a parameter in each type and format.

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

TEST(ModelSize, CountsTheBytesOfTheRunsFormats) {
  auto config = train_config(Device::cpu, Device::cpu, 1024, 512);
  const auto bytes = [&] {
    const Plan plan =
        make_plan(config, model_config(2, 64), Placement::configured, roomy_machine());
    EXPECT_EQ(plan.model_size.state_bytes,
              plan.model_size.bytes_per_parameter * plan.model_size.parameters);
    return plan.model_size.bytes_per_parameter;
  };
  EXPECT_EQ(bytes(), 2U + 2U + 12U);
  config.sluice.moments = config::MomentFormat::bf16;
  EXPECT_EQ(bytes(), 2U + 2U + 8U);
  config.sluice.moments.reset();
  config.bf16 = false;
  EXPECT_EQ(bytes(), 4U + 4U + 12U);
  config.fp16.enabled = true;
  EXPECT_EQ(bytes(), 2U + 2U + 12U);
}

}  // namespace
}  // namespace sluice::plan
