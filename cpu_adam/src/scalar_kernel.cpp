// The scalar kernel defines the result: one element at a time, in plain C++. The vector kernels
// repeat its operations in its order.

#include <cmath>
#include <limits>

#include "finite_check.hpp"
#include "kernels.hpp"
#include "rounding.hpp"

#define KERNEL_INLINE inline

namespace sluice::cpu_adam {

namespace {

using Vec = float;

Vec splat(float value) {
  return value;
}
Vec add(Vec a, Vec b) {
  return a + b;
}
Vec sub(Vec a, Vec b) {
  return a - b;
}
Vec mul(Vec a, Vec b) {
  return a * b;
}
Vec div(Vec a, Vec b) {
  return a / b;
}
Vec root(Vec a) {
  return std::sqrt(a);
}
Vec mul_add(Vec a, Vec b, Vec c) {
  return std::fma(a, b, c);
}
Vec larger_of(Vec a, Vec b) {
  return a <= b ? b : a;
}
Vec sign_of(Vec a) {
  if (a > 0) return 1;
  return a < 0 ? -1 : a;
}

#include "formulas.inc.hpp"

float load_gradient(const TileArguments& tile, std::size_t i) {
  switch (tile.gradient_type) {
    case DType::fp32:
      return static_cast<const float*>(tile.gradient)[i];
    case DType::bf16:
      return to_fp32(static_cast<const Bf16*>(tile.gradient)[i]);
    case DType::fp16:
      break;
  }
  return to_fp32(static_cast<const Fp16*>(tile.gradient)[i]);
}

void store_weight(const TileArguments& tile, std::size_t i, float value) {
  switch (tile.weight_type) {
    case WeightType::none:
      break;
    case WeightType::fp32:
      static_cast<float*>(tile.weight)[i] = value;
      break;
    case WeightType::bf16:
      static_cast<Bf16*>(tile.weight)[i] = to_bf16(value);
      break;
    case WeightType::fp16:
      static_cast<Fp16*>(tile.weight)[i] = to_fp16(value);
      break;
  }
}

template <MasterLayout kLayout>
float load_master(const TileArguments& tile, std::size_t i) {
  if constexpr (kLayout == MasterLayout::fp32) return static_cast<float*>(tile.master)[i];
  return join({static_cast<Bf16*>(tile.master)[i], tile.low[i]});
}

template <MasterLayout kLayout>
void store_master(const TileArguments& tile, std::size_t i, float value) {
  if constexpr (kLayout == MasterLayout::fp32) {
    static_cast<float*>(tile.master)[i] = value;
  } else {
    const SplitValue halves = split(value);
    static_cast<Bf16*>(tile.master)[i] = halves.weight;
    tile.low[i] = halves.low;
  }
}

float load_moment(const float* from, std::size_t i) {
  return from[i];
}
float load_moment(const Bf16* from, std::size_t i) {
  return to_fp32(from[i]);
}
void store_moment(float* to, std::size_t i, float value, std::uint32_t) {
  to[i] = value;
}
void store_moment(Bf16* to, std::size_t i, float value, std::uint32_t noise) {
  to[i] = round_stochastically(value, noise);
}

bool finite_as_fp16(WeightType type, float value) {
  return type != WeightType::fp16 || std::isfinite(to_fp32(to_fp16(value)));
}

// Replaces every NaN by one: payload and sign of a NaN depend on the instruction and the compiler.
float one_nan(float value) {
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}

template <class R, MasterLayout kLayout, class M>
struct StepRun {
  static bool run(const StepConstants& constants, const TileArguments& tile) {
    const Lanes c(constants);
    bool finite = true;
    for (std::size_t i = 0; i < tile.count; ++i) {
      Moments moments{};
      for (std::size_t k = 0; k < R::kMoments; ++k)
        moments[k] = load_moment(static_cast<const M*>(tile.moments[k]), i);
      float p = load_master<kLayout>(tile, i);
      R::update(c, load_gradient(tile, i) * constants.gradient_factor, p, moments);
      const float sum = R::kMoments == 0 ? p : p + moments[0];
      finite = finite && std::isfinite(sum) && finite_as_fp16(tile.weight_type, p);
      p = one_nan(p);
      store_master<kLayout>(tile, i, p);
      const std::uint32_t noise =
          noise_of(tile.rounding, tile.rounding.first + static_cast<std::uint32_t>(i));
      for (std::size_t k = 0; k < R::kMoments; ++k)
        store_moment(static_cast<M*>(tile.moments[k]), i, one_nan(moments[k]),
                     noise_of_moment(noise, k));
      store_weight(tile, i, p);
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

}  // namespace sluice::cpu_adam
