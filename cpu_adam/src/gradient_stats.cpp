#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

namespace {

constexpr std::size_t kChunk = 16'384;  // elements of one term of the sum
// Chunks per loop body of the executor: 256 KiB of 16-bit elements, so that the body's start costs
// little.
constexpr std::size_t kChunksPerTask = 8;

// Adds halves pairwise: one order for every kernel.
double total_of(Accumulators sums) {
  for (std::size_t half = kAccumulators / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Gradients end to end. Each chunk lies in one gradient.
class Chunks {
 public:
  Chunks(const Kernel& kernel, std::span<const GradientSpan> gradients)
      : kernel_(kernel), gradients_(gradients) {
    for (const GradientSpan& gradient : gradients) {
      begins_.push_back(count_);
      count_ += std::visit([](auto values) { return ceil_div(values.size(), kChunk); }, gradient);
    }
  }
  std::size_t count() const { return count_; }
  const void* memory_of(std::size_t chunk) const {
    const Place at = place_of(chunk);
    return std::visit([&](auto values) -> const void* { return values.data() + at.first; },
                      gradients_[at.gradient]);
  }
  double squares_of(std::size_t chunk) const {
    const Place at = place_of(chunk);
    return std::visit([&](auto values) { return squares(values, at.first); },
                      gradients_[at.gradient]);
  }
  // Sums the chunks' terms for each gradient, then the gradients' sums.
  double sum(const std::vector<double>& terms) const {
    double all = 0;
    for (std::size_t g = 0; g < begins_.size(); ++g) {
      const std::size_t end = g + 1 < begins_.size() ? begins_[g + 1] : count_;
      double one = 0;
      for (std::size_t chunk = begins_[g]; chunk < end; ++chunk) one += terms[chunk];
      all += one;
    }
    return all;
  }

 private:
  struct Place {
    std::size_t gradient;
    std::size_t first;  // element of the gradient
  };
  Place place_of(std::size_t chunk) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), chunk);
    const auto gradient = static_cast<std::size_t>(after - begins_.begin()) - 1;
    return {gradient, (chunk - begins_[gradient]) * kChunk};
  }
  template <class T>
  double squares(std::span<const T> values, std::size_t first) const {
    Accumulators sums{};
    kernel_.sum_squares[kGradientIndex<T>](values.data() + first,
                                           std::min(kChunk, values.size() - first), sums);
    return total_of(sums);
  }

  const Kernel& kernel_;
  const std::span<const GradientSpan> gradients_;
  std::vector<std::size_t> begins_;  // first chunk of each gradient; an empty gradient has no chunk
  std::size_t count_ = 0;
};

}  // namespace

GradientStats gradient_stats_on(const Kernel& kernel, std::span<const GradientSpan> gradients,
                                Executor& executor) {
  const Chunks chunks(kernel, gradients);
  std::vector<double> terms(chunks.count());
  executor.for_each_near(
      ceil_div(chunks.count(), kChunksPerTask),
      [&](std::size_t task) { return chunks.memory_of(task * kChunksPerTask); },
      [&](std::size_t task) {
        const std::size_t last = std::min(chunks.count(), (task + 1) * kChunksPerTask);
        for (std::size_t c = task * kChunksPerTask; c < last; ++c) terms[c] = chunks.squares_of(c);
      });
  double sum = chunks.sum(terms);
  // The sum alone shows whether all elements are finite. Squares of finite elements (at most 1.2e77
  // each) cannot overflow fp64; a non-finite element makes the sum non-finite.
  if (std::isnan(sum)) sum = std::numeric_limits<double>::quiet_NaN();
  return {sum, std::isfinite(sum)};
}

GradientStats gradient_stats(std::span<const GradientSpan> gradients, Executor& executor) {
  return gradient_stats_on(chosen_kernel(), gradients, executor);
}

GradientStats gradient_stats(GradientSpan gradient, Executor& executor) {
  return gradient_stats({&gradient, 1}, executor);
}

}  // namespace sluice::cpu_adam
