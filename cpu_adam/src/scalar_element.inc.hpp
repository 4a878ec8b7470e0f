// A step of one element, which defines the result: the formulas over one float, between the loads
// and the stores of every type. The scalar kernel includes this file for the host, and
// gpu/gpu_step.cu includes it for a GPU, inside their namespaces. The includer defines
// KERNEL_INLINE and, over floats: add, sub, mul, div, root, mul_add (formulas.inc.hpp), fp16_of =
// to_fp16 and fp32_of = to_fp32 of an fp16.

// Without an include guard, on purpose.

using Vec = float;

KERNEL_INLINE Vec splat(float value) {
  return value;
}
KERNEL_INLINE Vec larger_of(Vec a, Vec b) {
  return a <= b ? b : a;
}
KERNEL_INLINE Vec sign_of(Vec a) {
  if (a > 0) return 1;
  return a < 0 ? -1 : a;
}

#include "formulas.inc.hpp"

KERNEL_INLINE float load_gradient(const TileArguments& tile, std::size_t i) {
  switch (tile.gradient_type) {
    case DType::fp32:
      return static_cast<const float*>(tile.gradient)[i];
    case DType::bf16:
      return to_fp32(static_cast<const Bf16*>(tile.gradient)[i]);
    case DType::fp16:
      break;
  }
  return fp32_of(static_cast<const Fp16*>(tile.gradient)[i]);
}

KERNEL_INLINE void store_weight(const TileArguments& tile, std::size_t i, float value) {
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
      static_cast<Fp16*>(tile.weight)[i] = fp16_of(value);
      break;
  }
}

template <MasterLayout kLayout>
KERNEL_INLINE float load_master(const TileArguments& tile, std::size_t i) {
  if constexpr (kLayout == MasterLayout::fp32) {
    return static_cast<const float*>(tile.master)[i];
  } else {
    return joined({static_cast<const Bf16*>(tile.master)[i], tile.low[i]});
  }
}

template <MasterLayout kLayout>
KERNEL_INLINE void store_master(const TileArguments& tile, std::size_t i, float value) {
  if constexpr (kLayout == MasterLayout::fp32) {
    static_cast<float*>(tile.master)[i] = value;
  } else {
    const SplitValue halves = halves_of(value);
    static_cast<Bf16*>(tile.master)[i] = halves.weight;
    tile.low[i] = halves.low;
  }
}

KERNEL_INLINE float load_moment(const float* from, std::size_t i) {
  return from[i];
}
KERNEL_INLINE float load_moment(const Bf16* from, std::size_t i) {
  return to_fp32(from[i]);
}
KERNEL_INLINE void store_moment(float* to, std::size_t i, float value, std::uint32_t) {
  to[i] = value;
}
KERNEL_INLINE void store_moment(Bf16* to, std::size_t i, float value, std::uint32_t noise) {
  to[i] = round_stochastically(value, noise);
}

// Steps element i of the run. Returns false on an alarm of the finite check (finite_check.hpp).
template <class R, MasterLayout kLayout, class M>
KERNEL_INLINE bool step_element(const Lanes& c, float factor, const TileArguments& tile,
                                std::size_t i) {
  Moments moments{};
  for (std::size_t k = 0; k != R::kMoments; ++k)
    moments[k] = load_moment(static_cast<const M*>(tile.moments[k]), i);
  float p = load_master<kLayout>(tile, i);
  R::update(c, mul(load_gradient(tile, i), factor), p, moments);
  const float sum = R::kMoments == 0 ? p : add(p, moments[0]);
  const bool finite =
      is_finite(sum) && (tile.weight_type != WeightType::fp16 || is_finite(fp32_of(fp16_of(p))));
  p = one_nan(p);
  store_master<kLayout>(tile, i, p);
  const std::uint32_t noise =
      noise_of(tile.rounding, tile.rounding.first + static_cast<std::uint32_t>(i));
  for (std::size_t k = 0; k != R::kMoments; ++k)
    store_moment(static_cast<M*>(tile.moments[k]), i, one_nan(moments[k]),
                 noise_of_moment(noise, k));
  store_weight(tile, i, p);
  return finite;
}

// The answer to an alarm: whether element i's master, moments and weight are finite in memory. The
// weight is rounded anew from the master: a streamed weight may not be in memory yet.
KERNEL_INLINE bool finite_as_weight(float value, WeightType type) {
  if (type == WeightType::bf16) return is_finite(to_fp32(to_bf16(value)));
  if (type == WeightType::fp16) return is_finite(fp32_of(fp16_of(value)));
  return is_finite(value);
}
KERNEL_INLINE bool finite_master(const TileArguments& tile, MasterLayout layout, std::size_t i) {
  if (layout == MasterLayout::fp32)
    return finite_as_weight(load_master<MasterLayout::fp32>(tile, i), tile.weight_type);
  return is_finite(to_fp32(static_cast<const Bf16*>(tile.master)[i])) &&
         is_finite(load_master<MasterLayout::split>(tile, i));
}
KERNEL_INLINE bool finite_in_memory(const TileArguments& tile, const StateLayout& layout,
                                    std::size_t i) {
  if (!finite_master(tile, layout.master, i)) return false;
  for (std::size_t k = 0; k < layout.moments; ++k) {
    const float moment = layout.moment_bytes == sizeof(Bf16)
                             ? load_moment(static_cast<const Bf16*>(tile.moments[k]), i)
                             : load_moment(static_cast<const float*>(tile.moments[k]), i);
    if (!is_finite(moment)) return false;
  }
  return true;
}
