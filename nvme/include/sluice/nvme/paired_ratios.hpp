#pragma once
// Statistics of paired measurements: the median of the pairs' ratios and its confidence interval.
// Thread-safe: free functions without state.

#include <vector>

namespace sluice::nvme {

struct RatioSummary {
  double median = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
  // 90 % bootstrap interval of the median: 2000 resamples of the ratios, with replacement.
  double interval_begin = 0;
  double interval_end = 0;

  // Whether the median is above `ratio` and the whole interval is above 1.
  bool clearly_above(double ratio) const { return median > ratio && interval_begin > 1; }
};

// Summary of `ratios`; all zero when there are none. Deterministic: the resampling has a fixed
// seed.
RatioSummary summarize_ratios(const std::vector<double>& ratios);

// Summary of ours[i] / theirs[i]. Values without a partner are left out.
RatioSummary summarize_pairs(const std::vector<double>& ours, const std::vector<double>& theirs);

// Geometric mean of `values`, which are above 0; 0 when there are none.
double geometric_mean(const std::vector<double>& values);

// The quantile `share` (0 to 1) of `values`, linearly interpolated; 0 when there are none.
// Throws InvalidArgument for another share.
double quantile_of(std::vector<double> values, double share);

}  // namespace sluice::nvme
