// The kernel that defines the result: one element at a time, plain C++. The vector kernels repeat
// its operations in its order; they also use it for the elements that do not fill a vector.

#include <cmath>
#include <limits>

#include "kernels.hpp"

namespace sluice::cpu_adam {

namespace {

float to_fp32(float value) {
  return value;
}
using sluice::to_fp32;

void store(NoWeight*, std::size_t, float) {}
void store(float* weight, std::size_t i, float value) {
  weight[i] = value;
}
void store(Bf16* weight, std::size_t i, float value) {
  weight[i] = to_bf16(value);
}
void store(Fp16* weight, std::size_t i, float value) {
  weight[i] = to_fp16(value);
}

// Which payload and sign survive when two NaN meet depends on the instruction and the compiler.
float one_nan(float value) {
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}

// Adam, Kingma & Ba 2015, Alg. 1; decoupled decay: Loshchilov & Hutter 2019, Alg. 2.
template <class G, class W, L2 kL2>
struct Step {
  static void run(const StepConstants& c, const TileArguments& tile) {
    const auto* gradient = static_cast<const G*>(tile.gradient);
    auto* weight = static_cast<W*>(tile.weight);
    for (std::size_t i = 0; i < tile.count; ++i) {
      float p = tile.master[i];
      float g = to_fp32(gradient[i]) * c.gradient_factor;
      if constexpr (kL2 == L2::yes) g = std::fma(c.l2, p, g);
      p *= c.keep;
      const float m = std::fma(c.one_minus_beta1, g, c.beta1 * tile.moment1[i]);
      const float v = std::fma(c.one_minus_beta2 * g, g, c.beta2 * tile.moment2[i]);
      const float denominator = std::sqrt(v) / c.sqrt_bias_correction2 + c.epsilon;
      p = one_nan(p - (c.step_size * m) / denominator);
      tile.master[i] = p;
      tile.moment1[i] = one_nan(m);
      tile.moment2[i] = one_nan(v);
      store(weight, i, p);
    }
  }
};

template <class G>
struct SumSquares {
  static void run(const void* gradient, std::size_t count, Accumulators& sums) {
    const auto* values = static_cast<const G*>(gradient);
    for (std::size_t i = 0; i < count; ++i) {
      const double value = to_fp32(values[i]);
      // The square of an fp32 value is exact in fp64, so a fused multiply-add gives the same bits.
      sums[i % kAccumulators] += value * value;
    }
  }
};

constexpr Kernel kScalar = make_kernel<Step, SumSquares>("scalar", 0);

}  // namespace

const Kernel& scalar_kernel() {
  return kScalar;
}

}  // namespace sluice::cpu_adam
