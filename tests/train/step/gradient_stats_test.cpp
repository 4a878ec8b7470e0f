#include "device/gradient_stats.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice::train {
namespace {

using torch::Tensor;

double squared_norm(const Tensor& gradient) {
  const Tensor result = torch::full({1}, -1.0, torch::kFloat64);
  issue_squared_norm(nullptr, gradient, result);
  return result.item<double>();
}

class SquaredNormOf : public testing::TestWithParam<torch::Dtype> {};

TEST_P(SquaredNormOf, IsTheSumOfSquaresInDoublePrecision) {
  torch::manual_seed(3);
  const Tensor gradient = (1e-3 * torch::randn({100'003}, torch::kFloat64)).to(GetParam());
  const double expected = gradient.to(torch::kFloat64).square().sum().item<double>();
  // fp32: a sum by parts loses a few units in the last place, of 6e-8 each.
  EXPECT_NEAR(squared_norm(gradient) / expected, 1, 1e-5);
}

TEST_P(SquaredNormOf, IsNotFiniteWhenAnElementIsNot) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    Tensor gradient = torch::ones({1000}, GetParam());
    gradient[999] = bad;
    EXPECT_FALSE(std::isfinite(squared_norm(gradient))) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SquaredNormOf,
                         testing::Values(torch::kFloat32, torch::kBFloat16, torch::kFloat16),
                         [](const auto& each) { return torch::toString(each.param); });

TEST(SquaredNorm, IsOfAllRowsAndOfWhatFillsNone) {
  for (const std::int64_t count : {1, 65'535, 65'536, 65'537, 200'000}) {
    const Tensor gradient = torch::full({count}, 0.5, torch::kBFloat16);
    const double expected = 0.25 * static_cast<double>(count);
    EXPECT_NEAR(squared_norm(gradient), expected, 1e-6 * expected);
  }
}

TEST(SquaredNorm, IsNotFiniteWhereASquareDoesNotFitIntoFp32) {
  EXPECT_FALSE(std::isfinite(squared_norm(torch::full({10}, 1e30, torch::kBFloat16))));
}

}  // namespace
}  // namespace sluice::train
