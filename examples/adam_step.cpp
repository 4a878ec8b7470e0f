// AdamW on host memory: reads a bf16 gradient, updates fp32 master and moments, writes the bf16
// weight for the device. Minimises the sum of squares of w - 3.

#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/executor.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

int main() try {
  using namespace sluice;
  using namespace sluice::cpu_adam;

  constexpr std::size_t kCount = 1'000'000;
  std::vector<float> master(kCount, 0.0F), moment1(kCount, 0.0F), moment2(kCount, 0.0F);
  std::vector<Bf16> gradient(kCount), weight(kCount);
  const Tile tile{.master = std::span<float>(master),
                  .moments = {std::span<float>(moment1), std::span<float>(moment2)},
                  .gradient = std::span<const Bf16>(gradient),
                  .weight = std::span<Bf16>(weight)};

  const auto executor = make_executor(2);
  const AdamConfig config{.learning_rate = 0.1};
  int updates = 0;
  for (int t = 1; t <= 100; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) gradient[i] = to_bf16(2 * (master[i] - 3.0F));
    const GradientStats stats = gradient_stats(std::span<const Bf16>(gradient), *executor);
    if (!stats.finite) continue;  // a skipped step does not count
    step(config, Step{.step = ++updates}, tile, *executor);
    if (t % 20 == 0) {
      std::printf("step %3d  squared gradient norm %10.4g  weight %.4f\n", t, stats.squared_norm,
                  static_cast<double>(to_fp32(weight[0])));
    }
  }
  std::printf("kernel: %s\n", std::string(kernel_in_use()).c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "adam_step: %s\n", error.what());
  return 1;
}
