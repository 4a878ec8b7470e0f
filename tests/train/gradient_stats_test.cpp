#include "gradient_stats.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice::train {
namespace {

using torch::Tensor;

class DeviceGradientStatsOf : public testing::TestWithParam<torch::Dtype> {};

TEST_P(DeviceGradientStatsOf, AreTheSumOfSquaresInDoublePrecision) {
  torch::manual_seed(3);
  const Tensor gradient = (1e-3 * torch::randn({100'003}, torch::kFloat64)).to(GetParam());
  const double expected = gradient.to(torch::kFloat64).square().sum().item<double>();
  const cpu_adam::GradientStats stats = device_gradient_stats(gradient);
  EXPECT_TRUE(stats.finite);
  // fp32: a sum by parts loses a few units in the last place, of 6e-8 each.
  EXPECT_NEAR(stats.squared_norm / expected, 1, 1e-5);
}

TEST_P(DeviceGradientStatsOf, FindWhatIsNotFinite) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    Tensor gradient = torch::ones({1000}, GetParam());
    gradient[999] = bad;
    EXPECT_FALSE(device_gradient_stats(gradient).finite) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceGradientStatsOf,
                         testing::Values(torch::kFloat32, torch::kBFloat16, torch::kFloat16),
                         [](const auto& each) { return torch::toString(each.param); });

TEST(DeviceGradientStats, SquaresThatDoNotFitIntoFp32AreFinite) {
  const Tensor gradient = torch::full({1000}, 1e30, torch::kBFloat16);
  const double value = gradient[0].item<double>();
  const cpu_adam::GradientStats stats = device_gradient_stats(gradient);
  EXPECT_TRUE(stats.finite);
  EXPECT_NEAR(stats.squared_norm / (1000 * value * value), 1, 1e-9);
}

}  // namespace
}  // namespace sluice::train
