#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

namespace {

constexpr std::size_t kChunk = 16'384;  // elements whose squares are one term of the sum
// Chunks per loop body of the executor: 256 KiB of 16-bit elements, so that its start is small
// beside it.
constexpr std::size_t kChunksPerTask = 8;

// Halves are added pairwise: one order for every kernel.
double total_of(Accumulators sums) {
  for (std::size_t half = kAccumulators / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

template <class T>
GradientStats stats_of(const Kernel& kernel, std::span<const T> gradient, Executor& executor) {
  const SumFunction sum_squares = kernel.sum_squares[kGradientIndex<T>];
  const std::size_t chunks = ceil_div(gradient.size(), kChunk);
  std::vector<double> terms(chunks);
  const auto memory_of = [&](std::size_t task) {
    return gradient.data() + task * kChunksPerTask * kChunk;
  };
  executor.for_each_near(ceil_div(chunks, kChunksPerTask), memory_of, [&](std::size_t task) {
    const std::size_t last = std::min(chunks, (task + 1) * kChunksPerTask);
    for (std::size_t chunk = task * kChunksPerTask; chunk < last; ++chunk) {
      const std::size_t first = chunk * kChunk;
      Accumulators sums{};
      sum_squares(gradient.data() + first, std::min(kChunk, gradient.size() - first), sums);
      terms[chunk] = total_of(sums);
    }
  });
  double sum = 0;
  for (const double term : terms) sum += term;
  // Squares of finite elements (at most 1.2e77 each) cannot overflow fp64, and an element that is
  // not finite leaves no sum finite: the sum alone tells.
  if (std::isnan(sum)) sum = std::numeric_limits<double>::quiet_NaN();
  return {sum, std::isfinite(sum)};
}

}  // namespace

GradientStats gradient_stats_on(const Kernel& kernel, GradientSpan gradient, Executor& executor) {
  return std::visit([&](auto values) { return stats_of(kernel, values, executor); }, gradient);
}

GradientStats gradient_stats(GradientSpan gradient, Executor& executor) {
  return gradient_stats_on(chosen_kernel(), gradient, executor);
}

}  // namespace sluice::cpu_adam
