#include "sluice/nvme/paired_ratios.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>

#include "sluice/base/error.hpp"

namespace sluice::nvme {

double quantile_of(std::vector<double> values, double share) {
  SLUICE_CHECK(share >= 0 && share <= 1,
               "a quantile at " + std::to_string(share) + ": expected 0 to 1");
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

RatioSummary summarize_ratios(const std::vector<double>& ratios) {
  if (ratios.empty()) return {};
  constexpr int kResamples = 2000;
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::size_t> any(0, ratios.size() - 1);
  std::vector<double> medians;
  std::vector<double> drawn(ratios.size());
  for (int i = 0; i < kResamples; ++i) {
    for (double& value : drawn) value = ratios[any(random)];
    medians.push_back(quantile_of(drawn, 0.5));
  }
  return {quantile_of(ratios, 0.5), quantile_of(ratios, 0.25), quantile_of(ratios, 0.75),
          quantile_of(medians, 0.05), quantile_of(medians, 0.95)};
}

RatioSummary summarize_pairs(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios(std::min(ours.size(), theirs.size()));
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] = ours[i] / theirs[i];
  return summarize_ratios(ratios);
}

double geometric_mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

}  // namespace sluice::nvme
