#pragma once
// What paired measurements say: the median of the ratios of the pairs, and how sure that is.
// Thread-safe: free functions without state.

#include <vector>

namespace sluice::cli {

struct RatioSummary {
  double median = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
  // Nine in ten medians of as many ratios, drawn with replacement from these (bootstrap), lie here.
  double interval_begin = 0;
  double interval_end = 0;
};

// All zero when there are none. The same ratios give the same summary.
RatioSummary summarize_ratios(const std::vector<double>& ratios);

// The value below which `share` of them lie, interpolated; 0 when there are none.
double quantile_of(std::vector<double> values, double share);

}  // namespace sluice::cli
