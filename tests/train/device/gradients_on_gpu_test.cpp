// Gradients that wait on the GPU for their updates: the bits of gradients that wait in host memory,
// and the same messages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moved_homes.hpp"
#include "train/step/small_run.hpp"

namespace sluice::train {
namespace {

using test::Home;
using ::testing::HasSubstr;

using Case = test::RunCase;

class GradientsOnGpu : public test::MovedHomes {
 protected:
  // With all gradients beside states in host memory at home on that tier, whatever the plan says.
  static plan::Plan with_gradients_on(offload::Tier tier, plan::Plan plan) {
    for (plan::UnitPlacement& unit : plan.units) {
      if (unit.states != offload::Tier::host) continue;
      unit.gradients = tier;
      unit.gradients_use_slots = false;
    }
    plan.rings.gradient_slots = 0;
    plan.rings.gradient_slot_bytes = 0;
    fit_to_homes(plan);
    return plan;
  }
  void expect_bits_of_those_in_host_memory(const plan::Plan& plan) const {
    expect_same(run(with_gradients_on(offload::Tier::device, plan)),
                run(with_gradients_on(offload::Tier::host, plan)));
  }
};

TEST_P(GradientsOnGpu, HaveTheBitsOfThoseInHostMemory) {
  expect_bits_of_those_in_host_memory(plan_of_case(GetParam()));
}

TEST_F(GradientsOnGpu, HaveTheBitsWithOneMicroBatchAndInFp32) {
  for (const double clipping : {0.0, 1e-3}) {
    const Case each{.weights = Home::none, .clipping = clipping, .dropout = 0.1};
    for (const test::Steps& steps :
         {test::Steps{1, false}, test::Steps{1, true}, test::Steps{3, true}})
      expect_bits_of_those_in_host_memory(plan_of_case(each, steps));
  }
}

std::vector<Case> cases() {
  using config::MasterFormat;
  using config::MomentFormat;
  return {
      {.name = "no_clipping", .weights = Home::none, .clipping = 0},
      {.name = "clipping", .weights = Home::none, .clipping = 1},
      {.name = "untied", .weights = Home::none, .clipping = 1e-3, .tied = false},
      {.name = "passes", .weights = Home::none, .clipping = 0, .per_pass = 1},
      {.name = "fp16", .weights = Home::none, .clipping = 1, .fp16 = true},
      {.name = "fp32_sums", .weights = Home::none, .clipping = 0, .fp32_sums = true},
      {.name = "fp32_master", .weights = Home::none, .clipping = 0, .master = MasterFormat::fp32},
      {.name = "bf16_moments", .weights = Home::none, .clipping = 0, .moments = MomentFormat::bf16},
      {.name = "weights_in_host_memory", .clipping = 0},
      {.name = "speculative", .weights = Home::none, .clipping = 1e6, .speculative = true},
      {.name = "speculative_clipped", .weights = Home::none, .clipping = 1, .speculative = true},
      {.name = "gpu_updates", .weights = Home::none, .clipping = 0, .gpu_updates = true},
      {.name = "half_of_states_on_gpu", .weights = Home::none, .clipping = 0, .ratio = 0.4},
  };
}
INSTANTIATE_TEST_SUITE_P(Cases, GradientsOnGpu, testing::ValuesIn(cases()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_F(GradientsOnGpu, StayWithoutClippingAndLeaveWithIt) {
  for (const double clipping : {0.0, 1.0}) {
    const plan::Plan plan =
        plan_of_case({.weights = Home::none, .clipping = clipping, .tied = false});
    for (const plan::UnitPlacement& unit : plan.units)
      EXPECT_EQ(unit.gradients == offload::Tier::device, clipping == 0);
  }
}

// Gradients that are sent by hand. Halves of the master may be on the GPU too.
class SentGradients : public GradientsOnGpu, protected test::FlowRun {
 protected:
  SentGradients()
      : FlowRun(
            with_gradients_on(offload::Tier::device,
                              plan_of_case({.weights = Home::none,
                                            .clipping = 0,
                                            .tied = false,
                                            .layers = 3,
                                            .halves_in_weights = GetParam().halves_in_weights}))) {}
};

TEST_P(SentGradients, NameTheParameterThatIsNotFinite) {
  EXPECT_THAT(error_of_a_later_gradient(), HasSubstr("transformer.h.1.ln_2.weight is not finite"));
  flow_.abandon();
}

TEST_P(SentGradients, OfASkippedStepChangeNothing) {
  flow_.begin_step();
  for (std::size_t u = last() + 1; u-- > 0;)
    send(u, u == 1 ? "transformer.h.0.mlp.c_fc.weight" : "");
  flow_.finish_moves();
  EXPECT_EQ(flow_.non_finite(), "transformer.h.0.mlp.c_fc.weight");
  flow_.drop();
  for (std::size_t u = 0; u <= last(); ++u) EXPECT_EQ(weight_of(u), 1.0F) << u;
}

TEST_P(SentGradients, OfAStepThatFailedAreForgotten) {
  flow_.begin_step();
  send(last());
  send(2, "transformer.h.1.ln_2.weight");
  flow_.abandon();
  flow_.begin_step();
  flow_.update_immediately(kUpdate);
  for (std::size_t u = last() + 1; u-- > 0;) send(u);
  flow_.finish_moves();
  double elements = 0;
  for (std::size_t u = 0; u <= last(); ++u) {
    EXPECT_EQ(weight_of(u), 0.5F) << u;
    elements += static_cast<double>(plan_.layouts[u].param_count);
  }
  EXPECT_NEAR(flow_.squared_norm() / elements, 1, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Halves, SentGradients,
                         testing::Values(Case{.name = "in_host_memory"},
                                         Case{.name = "in_weights", .halves_in_weights = true}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace sluice::train
