#pragma once
// What paired measurements say: the median of the ratios of the pairs, and how sure that is.
// Thread-safe: free functions without state.

#include <vector>

namespace sluice::nvme {

struct RatioSummary {
  double median = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
  // Nine in ten medians of as many ratios, drawn with replacement from these (bootstrap), lie here.
  double interval_begin = 0;
  double interval_end = 0;

  // The median is above `ratio`, and what is above 1 is more than the noise of the pairs.
  bool clearly_above(double ratio) const { return median > ratio && interval_begin > 1; }
};

// All zero when there are none. The same ratios give the same summary.
RatioSummary summarize_ratios(const std::vector<double>& ratios);

// Of ours[i] / theirs[i]; where one is longer, its end has no partner and is left out.
RatioSummary summarize_pairs(const std::vector<double>& ours, const std::vector<double>& theirs);

// Of values above 0; 0 when there are none.
double geometric_mean(const std::vector<double>& values);

// The value below which `share` of them lie, interpolated; 0 when there are none.
double quantile_of(std::vector<double> values, double share);

}  // namespace sluice::nvme
