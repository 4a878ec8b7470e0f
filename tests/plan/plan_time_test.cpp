// The time that planning takes with many layers.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "plans.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/unit_placement.hpp"

namespace sluice::plan {
namespace {

// A plan of n layers takes time linear in n: a fraction of a second here. Quadratic work would take
// minutes.
TEST(Plan, OfThousandsOfLayersIsMadeInSeconds) {
  config::ModelConfig model = model_config(20'000, 32);
  model.n_positions = 16;
  const auto begin = std::chrono::steady_clock::now();
  // The planner tries each unit, and nearly all stay on the device between forward and backward.
  const auto fits = make_plan(train_config(Device::nvme, Device::nvme, 512, 512), model,
                              Placement::configured, roomy_machine());
  EXPECT_GT(std::count_if(fits.units.begin(), fits.units.end(),
                          [](const UnitPlacement& unit) { return unit.gathered_until_backward; }),
            10'000);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// The search for suggestions plans a few dozen times.
TEST(Plan, OfAThousandLayersIsRefusedInSeconds) {
  config::ModelConfig model = model_config(1000, 32);
  model.n_positions = 16;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(refusal(train_config(Device::nvme, Device::nvme, 1, 1), model, roomy_machine()), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace sluice::plan
