// The scalar kernel defines the result: one element at a time, in plain C++. The vector kernels
// repeat its operations in its order; a GPU compiles its element (scalar_element.inc.hpp).

#include <cmath>

#include "finite_check.hpp"
#include "kernels.hpp"
#include "rounding.hpp"
#include "tile_arguments.hpp"

#define KERNEL_INLINE inline

namespace sluice::cpu_adam {

namespace {

float add(float a, float b) {
  return a + b;
}
float sub(float a, float b) {
  return a - b;
}
float mul(float a, float b) {
  return a * b;
}
float div(float a, float b) {
  return a / b;
}
float root(float a) {
  return std::sqrt(a);
}
float mul_add(float a, float b, float c) {
  return std::fma(a, b, c);
}
Fp16 fp16_of(float value) {
  return to_fp16(value);
}
float fp32_of(Fp16 value) {
  return to_fp32(value);
}

#include "scalar_element.inc.hpp"

template <class R, MasterLayout kLayout, class M>
struct StepRun {
  static bool run(const StepConstants& constants, const TileArguments& tile) {
    const Lanes c(constants);
    bool finite = true;
    for (std::size_t i = 0; i < tile.count; ++i) {
      if (!step_element<R, kLayout, M>(c, constants.gradient_factor, tile, i)) finite = false;
    }
    return finite;
  }
};

template <class G>
struct SumSquares {
  static float value_of(float value) { return value; }
  template <class T>
  static float value_of(T value) {
    return to_fp32(value);
  }
  static void run(const void* gradient, std::size_t count, Accumulators& sums) {
    const auto* values = static_cast<const G*>(gradient);
    for (std::size_t i = 0; i < count; ++i) {
      const double value = value_of(values[i]);
      // The square of an fp32 value is exact in fp64, so a fused multiply-add gives the same bits.
      sums[i % kAccumulators] += value * value;
    }
  }
};

constexpr Kernel kScalar =
    make_kernel<StepRun, SumSquares, Adam, AmsGrad, Adagrad, Lion, Momentum, Sgd>("scalar", 0);

}  // namespace

const Kernel& scalar_kernel() {
  return kScalar;
}

std::size_t first_non_finite(const TileArguments& tile, const StateLayout& layout) {
  for (std::size_t i = 0; i < tile.count; ++i) {
    if (!finite_in_memory(tile, layout, i)) return i;
  }
  return tile.count;
}

}  // namespace sluice::cpu_adam
