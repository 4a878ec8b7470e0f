// The vector kernels: the formulas over Highway's vectors. This file is compiled once for every
// instruction set.

// clang-format off
#include "targets.inc.hpp"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "vector_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "finite_check.hpp"
#include "kernels.hpp"
#include "rounding.hpp"
#include "tile_arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_adam {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;  // as many 16-bit elements as Floats has lanes
using Vec = hn::Vec<Floats>;
using BitVec = hn::Vec<Bits>;
constexpr std::size_t kLanes = HWY_LANES(float);
static_assert(kLanes <= PartOfVector::kMost);

HWY_INLINE Vec splat(float value) {
  return hn::Set(Floats(), value);
}
HWY_INLINE Vec add(Vec a, Vec b) {
  return hn::Add(a, b);
}
HWY_INLINE Vec sub(Vec a, Vec b) {
  return hn::Sub(a, b);
}
HWY_INLINE Vec mul(Vec a, Vec b) {
  return hn::Mul(a, b);
}
HWY_INLINE Vec div(Vec a, Vec b) {
  return hn::Div(a, b);
}
HWY_INLINE BitVec bits_of(Vec value) {
  return hn::BitCast(Bits(), value);
}
HWY_INLINE Vec float_of(BitVec bits) {
  return hn::BitCast(Floats(), bits);
}
HWY_INLINE Vec root(Vec a) {
  return hn::Sqrt(a);
}
HWY_INLINE Vec mul_add(Vec a, Vec b, Vec c) {
  return hn::MulAdd(a, b, c);
}
HWY_INLINE Vec larger_of(Vec a, Vec b) {
  return hn::IfThenElse(hn::Le(a, b), b, a);
}
HWY_INLINE Vec sign_of(Vec a) {
  const Vec one = splat(1);
  const Vec of_number = hn::Or(one, hn::And(a, hn::SignBit(Floats())));
  // A value neither above nor below 0 is a zero or a NaN, and stays unchanged.
  const auto ordered = hn::Or(hn::Gt(a, splat(0)), hn::Lt(a, splat(0)));
  return hn::IfThenElse(ordered, of_number, a);
}

#define KERNEL_INLINE HWY_INLINE
#include "formulas.inc.hpp"

#if HWY_TARGET == HWY_AVX3
// Lanes whose square root does not use the divider, which otherwise limits a step dominated by
// division and root. The root comes from the 14-bit estimate of its reciprocal, and is correctly
// rounded: a coupled Newton iteration for the root and half of its reciprocal, then a step from the
// exact residue (Markstein 2000, "IA-64 and Elementary Functions", chapter 9). From kLeast on,
// scale does not matter; below kLeast the residue would be subnormal. kernel_conformance_test
// compares every mantissa. A root of a value below kLeast is wrong, and correct() reports it. The
// root of infinity is NaN.
class LanesWithoutDivider : public Lanes {
 public:
  explicit HWY_INLINE LanesWithoutDivider(const StepConstants& constants) : Lanes(constants) {}
  HWY_INLINE Vec square_root(Vec a) {
    correct_ = hn::And(correct_, hn::Ge(a, splat(kLeast)));
    const Vec estimate = hn::ApproximateReciprocalSqrt(a);
    Vec r = hn::Mul(a, estimate);
    Vec half = hn::Mul(splat(0.5F), estimate);
    const Vec error = hn::NegMulAdd(half, r, splat(0.5F));
    r = hn::MulAdd(r, error, r);
    half = hn::MulAdd(half, error, half);
    return hn::MulAdd(hn::NegMulAdd(r, r, a), half, r);
  }
  // Lanes in which all roots since the last call are correct.
  HWY_INLINE hn::Mask<Floats> correct() { return std::exchange(correct_, all()); }

 private:
  static constexpr float kLeast = 0x1p-96F;
  static HWY_INLINE hn::Mask<Floats> all() { return hn::FirstN(Floats(), kLanes); }
  hn::Mask<Floats> correct_ = all();
};
#endif

#include "elements.inc.hpp"
#include "pairs.inc.hpp"

template <class R, MasterLayout kLayout, class M>
struct StepRun {
  static constexpr StateLayout kStates{kLayout, R::kMoments, sizeof(M)};

  struct Vector {
    HWY_INLINE Vector() {}  // a generated constructor would lack the instruction set
    Vec p;
    Moments moments;
  };
  template <class L, class Part>
  static HWY_INLINE Vector updated(L& c, Vec factor, const TileArguments& tile, std::size_t i,
                                   Part part) {
    Vector out;
    for (std::size_t k = 0; k < R::kMoments; ++k)
      out.moments[k] = load_ahead<M>(tile.moments[k], i, part);
    out.p = load_master<kLayout>(tile, i, part);
    R::update(c, hn::Mul(load_gradient(tile, i, part), factor), out.p, out.moments);
    return out;
  }
  template <class Part>
  static HWY_INLINE void store_states(const TileArguments& tile, std::size_t i,
                                      const Vector& vector, Part part) {
    store_master<kLayout>(tile, i, vector.p, part);
    store_moments(tile, i, vector.moments, R::kMoments, M{}, part);
  }
  template <class Part>
  static HWY_INLINE void vector_at(const Lanes& c, Vec factor, const TileArguments& tile,
                                   std::size_t i, Part part, FiniteCheck& check) {
    Vector vector = updated(c, factor, tile, i, part);
    const Vec sum = FiniteCheck::sum_of<R::kMoments>(vector.p, vector.moments);
    if (HWY_UNLIKELY(!hn::AllFalse(Floats(), FiniteCheck::bad_lanes(sum))))
      check.alarm<R::kMoments>(vector.p, vector.moments);
    store_states(tile, i, vector, part);
    store_weight(tile, i, vector.p, part, check);
  }
  // Steps two vectors with one check. `streams`: streams their 16-bit weights as one: on AVX-512, a
  // whole line, which fills one of the processor's write-combining buffers.
  template <bool streams>
  static HWY_INLINE void two_at(const Lanes& c, Vec factor, const TileArguments& tile,
                                std::size_t i, FiniteCheck& check) {
    Vector first = updated(c, factor, tile, i, AllLanes{});
    Vector second = updated(c, factor, tile, i + kLanes, AllLanes{});
    const Vec sum = hn::Add(FiniteCheck::sum_of<R::kMoments>(first.p, first.moments),
                            FiniteCheck::sum_of<R::kMoments>(second.p, second.moments));
    if (HWY_UNLIKELY(!hn::AllFalse(Floats(), FiniteCheck::bad_lanes(sum)))) {
      check.alarm<R::kMoments>(first.p, first.moments);
      check.alarm<R::kMoments>(second.p, second.moments);
    }
    store_states(tile, i, first, AllLanes{});
    store_states(tile, i + kLanes, second, AllLanes{});
    if constexpr (streams) {
      stream_weights(tile, i, first.p, second.p, check);
    } else {
      store_weight(tile, i, first.p, AllLanes{}, check);
      store_weight(tile, i + kLanes, second.p, AllLanes{}, check);
    }
  }

#if HWY_TARGET == HWY_AVX3
  // Steps three vectors; the otherwise idle divider takes every third root. Stores nothing and
  // returns false when a state may be non-finite or a root is not correct.
  static HWY_INLINE bool three_at(LanesWithoutDivider& c, Vec factor, const TileArguments& tile,
                                  std::size_t i, FiniteCheck& check) {
    const Vector vectors[] = {updated(c, factor, tile, i, AllLanes{}),
                              updated(c, factor, tile, i + kLanes, AllLanes{}),
                              updated<const Lanes>(c, factor, tile, i + 2 * kLanes, AllLanes{})};
    Vec sum = FiniteCheck::sum_of<R::kMoments>(vectors[0].p, vectors[0].moments);
    for (std::size_t j = 1; j < 3; ++j)
      sum = hn::Add(sum, FiniteCheck::sum_of<R::kMoments>(vectors[j].p, vectors[j].moments));
    const hn::Mask<Floats> good = hn::AndNot(FiniteCheck::bad_lanes(sum), c.correct());
    if (HWY_UNLIKELY(!hn::AllTrue(Floats(), good))) return false;
    for (std::size_t j = 0; j < 3; ++j) {
      store_states(tile, i + j * kLanes, vectors[j], AllLanes{});
      store_weight(tile, i + j * kLanes, vectors[j].p, AllLanes{}, check);
    }
    return true;
  }
#endif

  // Steps fewer elements than a vector has. Without masks, the elements are copied and padded.
  static void rest(const Lanes& c, Vec factor, const TileArguments& tile, FiniteCheck& check) {
    if constexpr (HWY_TARGET == HWY_AVX3) {
      vector_at(c, factor, tile, 0, FirstLanes{tile.count}, check);
    } else {
      PartOfVector part(tile, kStates);
      vector_at(c, factor, part.arguments(), 0, AllLanes{}, check);
      part.copy_back();
    }
  }

  static bool run(const StepConstants& constants, const TileArguments& tile) {
    const Lanes c(constants);
    FiniteCheck check;
    const Vec factor = splat(constants.gradient_factor);
    // A copy whose address does not escape, so that the compiler knows that the loop's stores leave
    // it unchanged.
    const TileArguments in_registers = tile;
    std::size_t i = 0;
    if constexpr (kLayout == MasterLayout::split && std::is_same_v<M, Bf16>) {
      const bool all_16_bits = in_registers.gradient_type == DType::bf16;
      for (; all_16_bits && i + 2 * kLanes <= in_registers.count; i += 2 * kLanes)
        pairs_at<R>(c, factor, in_registers, i, check);
    }
#if HWY_TARGET == HWY_AVX3
    // With 16-bit elements, conversion takes longer than the divider.
    if constexpr (kLayout == MasterLayout::fp32 && std::is_same_v<M, float>) {
      if (tile.gradient_type == DType::fp32) {
        LanesWithoutDivider without(constants);
        for (; i + 3 * kLanes <= in_registers.count; i += 3 * kLanes) {
          if (HWY_LIKELY(three_at(without, factor, in_registers, i, check))) continue;
          for (std::size_t j = 0; j < 3; ++j)
            vector_at(c, factor, in_registers, i + j * kLanes, AllLanes{}, check);
        }
      }
    }
#endif
    if (tile.store == WeightStore::streaming && size_of(tile.weight_type) == sizeof(Bf16)) {
      for (; i + 2 * kLanes <= in_registers.count; i += 2 * kLanes)
        two_at<true>(c, factor, in_registers, i, check);
    }
    // Measured on AVX-512: two at a time gain 7 % with a split master, and lose 5 % otherwise.
    if constexpr (kLayout == MasterLayout::split) {
      for (; i + 2 * kLanes <= in_registers.count; i += 2 * kLanes)
        two_at<false>(c, factor, in_registers, i, check);
    }
    for (; i + kLanes <= in_registers.count; i += kLanes)
      vector_at(c, factor, in_registers, i, AllLanes{}, check);
    if (i == tile.count) return check.finite();
    TileArguments last = advanced(tile, kStates, i);
    last.count = tile.count - i;
    rest(c, factor, last, check);
    return check.finite();
  }
};

template <class G>
struct SumSquares {
  static void run(const void* gradient, std::size_t count, Accumulators& sums) {
    const hn::ScalableTag<double> d;
    const hn::Rebind<float, decltype(d)> half;
    constexpr std::size_t kDoubles = HWY_LANES(double);
    constexpr std::size_t kVectors = kAccumulators / kDoubles;
    static_assert(kVectors % 2 == 0, "a vector of floats fills two vectors of doubles");
    hn::Vec<decltype(d)> sum[kVectors];
    for (std::size_t k = 0; k < kVectors; ++k) sum[k] = hn::LoadU(d, sums.data() + k * kDoubles);

    const auto* values = static_cast<const G*>(gradient);
    std::size_t i = 0;
    for (; i + kAccumulators <= count; i += kAccumulators) {
      for (std::size_t b = 0; b < kAccumulators * sizeof(G); b += kCacheLineBytes) {
        prefetch(values + i, b);
      }
      for (std::size_t k = 0; k < kVectors; k += 2) {
        const Vec x = load(values + i + k * kDoubles, AllLanes{});
        const auto low = hn::PromoteTo(d, hn::LowerHalf(half, x));
        const auto high = hn::PromoteTo(d, hn::UpperHalf(half, x));
        sum[k] = hn::MulAdd(low, low, sum[k]);
        sum[k + 1] = hn::MulAdd(high, high, sum[k + 1]);
      }
    }
    for (std::size_t k = 0; k < kVectors; ++k) hn::StoreU(sum[k], d, sums.data() + k * kDoubles);
    // `i` is a multiple of kAccumulators, so the rest starts at accumulator 0.
    scalar_kernel().sum_squares[kGradientIndex<G>](values + i, count - i, sums);
  }
};

constexpr Kernel kKernel =
    make_kernel<StepRun, SumSquares, Adam, AmsGrad, Adagrad, Lion, Momentum, Sgd>(
        HWY_TARGET == HWY_AVX3   ? "avx512"
        : HWY_TARGET == HWY_AVX2 ? "avx2"
                                 : "neon",
        HWY_TARGET);

#undef KERNEL_INLINE

#endif  // HWY_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_adam
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluice::cpu_adam {

std::span<const Kernel> vector_kernels() {
#if (HWY_TARGETS & HWY_AVX3) && (HWY_TARGETS & HWY_AVX2)
  static constexpr std::array kList{N_AVX3::kKernel, N_AVX2::kKernel};
#elif HWY_TARGETS & HWY_AVX3
  static constexpr std::array kList{N_AVX3::kKernel};
#elif HWY_TARGETS & HWY_AVX2
  static constexpr std::array kList{N_AVX2::kKernel};
#elif HWY_TARGETS & HWY_NEON
  static constexpr std::array kList{N_NEON::kKernel};
#else
  static constexpr std::array<Kernel, 0> kList{};
#endif
  return kList;
}

}  // namespace sluice::cpu_adam

#endif  // HWY_ONCE
