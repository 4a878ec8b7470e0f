// The same formulas over Highway's vectors: this file is compiled once for every instruction set.
//
// Left out are sets without fused multiply-add (SSE, and Highway's own scalar one, whose MulAdd
// rounds twice) and those never run by this project's tests (Arm, Power, RISC-V, WebAssembly):
// there the scalar kernel is the only one.

// clang-format off
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (~(HWY_AVX2 | HWY_AVX3 | HWY_SCALAR | HWY_EMU128))
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "vector_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

#include <array>
#include <cstdint>
#include <limits>

#include "kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_adam {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;  // as many 16-bit elements as Floats has lanes
using Vec = hn::Vec<Floats>;
using HalfVec = hn::Vec<Halves>;

HWY_INLINE Vec load(const float* from) {
  return hn::LoadU(Floats(), from);
}

HWY_INLINE Vec load(const Bf16* from) {
  const auto bits = hn::LoadU(Halves(), &from->bits);
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), bits)));
}

// AVX2 and AVX-512 convert fp16 in hardware, subnormals included.
HWY_INLINE Vec load(const Fp16* from) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(Floats(), hn::BitCast(halves, hn::LoadU(Halves(), &from->bits)));
}

// to_bf16 of base/dtype.hpp for a value whose NaN is the one of one_nan: its rounding then needs no
// exception (0x7FC00000 + 0x7FFF carries nothing into the upper half).
HWY_INLINE HalfVec round_to(Bf16, Vec value) {
  const Bits bits;
  const auto in = hn::BitCast(bits, value);
  const auto odd = hn::And(hn::ShiftRight<16>(in), hn::Set(bits, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(in, hn::Set(bits, 0x7FFF)), odd));
  // At most 0xFFFF, so the saturation of the signed conversion never acts.
  return hn::DemoteTo(Halves(), hn::BitCast(hn::RebindToSigned<Bits>(), rounded));
}

// VCVTPS2PH with round to nearest even: the bits of to_fp16.
HWY_INLINE HalfVec round_to(Fp16, Vec value) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::BitCast(Halves(), hn::DemoteTo(halves, value));
}

template <WeightStore kStore>
HWY_INLINE void store(NoWeight*, Vec) {}

template <WeightStore kStore>
HWY_INLINE void store(float* to, Vec value) {
  if constexpr (kStore == WeightStore::streaming) {
    hn::Stream(value, Floats(), to);
  } else {
    hn::StoreU(value, Floats(), to);
  }
}

template <WeightStore kStore, class W>
HWY_INLINE void store(W* to, Vec value) {
  if constexpr (kStore == WeightStore::streaming) {
    hn::Stream(round_to(W{}, value), Halves(), &to->bits);
  } else {
    hn::StoreU(round_to(W{}, value), Halves(), &to->bits);
  }
}

HWY_INLINE Vec one_nan(Vec value) {
  const Vec nan = hn::Set(Floats(), std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(value), nan, value);
}

// The hardware's prefetchers stop at the end of a page. Asked for a page ahead, reads get 1.1
// (Adam's four streams) to 1.4 (a single one) times the bandwidth (bench/adam_bench.cpp). An
// address past the end is harmless: a prefetch never faults.
constexpr std::size_t kCacheLineBytes = 64;
constexpr std::uintptr_t kPrefetchBytes = 4096;
HWY_INLINE void prefetch(const void* from, std::size_t offset_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(from) + offset_bytes + kPrefetchBytes;
  hwy::Prefetch(reinterpret_cast<const char*>(address));
}

template <class T>
HWY_INLINE T* advance(T* pointer, std::size_t count) {
  return pointer + count;
}
// A weight that is not written has no address to move.
HWY_INLINE NoWeight* advance(NoWeight* pointer, std::size_t) {
  return pointer;
}

// Adam, Kingma & Ba 2015, Alg. 1; decoupled decay: Loshchilov & Hutter 2019, Alg. 2. The operations
// are those of the scalar kernel, in its order.
template <class G, class W, L2 kL2>
struct Step {
  template <WeightStore kStore>
  static std::size_t whole_vectors(const StepConstants& c, const TileArguments& tile) {
    const Floats f;
    const auto gradient_factor = hn::Set(f, c.gradient_factor);
    const auto l2 = hn::Set(f, c.l2);
    const auto keep = hn::Set(f, c.keep);
    const auto beta1 = hn::Set(f, c.beta1);
    const auto one_minus_beta1 = hn::Set(f, c.one_minus_beta1);
    const auto beta2 = hn::Set(f, c.beta2);
    const auto one_minus_beta2 = hn::Set(f, c.one_minus_beta2);
    const auto sqrt_bias_correction2 = hn::Set(f, c.sqrt_bias_correction2);
    const auto epsilon = hn::Set(f, c.epsilon);
    const auto step_size = hn::Set(f, c.step_size);
    const auto* gradient = static_cast<const G*>(tile.gradient);
    auto* weight = static_cast<W*>(tile.weight);

    std::size_t i = 0;
    for (; i + hn::Lanes(f) <= tile.count; i += hn::Lanes(f)) {
      prefetch(tile.master + i, 0);
      prefetch(tile.moment1 + i, 0);
      prefetch(tile.moment2 + i, 0);
      prefetch(gradient + i, 0);
      Vec p = load(tile.master + i);
      Vec g = hn::Mul(load(gradient + i), gradient_factor);
      if constexpr (kL2 == L2::yes) g = hn::MulAdd(l2, p, g);
      p = hn::Mul(p, keep);
      const Vec m = hn::MulAdd(one_minus_beta1, g, hn::Mul(beta1, load(tile.moment1 + i)));
      const Vec v =
          hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, load(tile.moment2 + i)));
      const Vec denominator = hn::Add(hn::Div(hn::Sqrt(v), sqrt_bias_correction2), epsilon);
      p = one_nan(hn::Sub(p, hn::Div(hn::Mul(step_size, m), denominator)));
      hn::StoreU(p, f, tile.master + i);
      hn::StoreU(one_nan(m), f, tile.moment1 + i);
      hn::StoreU(one_nan(v), f, tile.moment2 + i);
      store<kStore>(advance(weight, i), p);
    }
    return i;
  }

  static void run(const StepConstants& c, const TileArguments& tile) {
    std::size_t done = 0;
    if (tile.store == WeightStore::streaming) {
      done = whole_vectors<WeightStore::streaming>(c, tile);
      hwy::FlushStream();  // before whoever waits for this thread reads the weight
    } else {
      done = whole_vectors<WeightStore::cached>(c, tile);
    }
    if (done == tile.count) return;
    const TileArguments rest{tile.master + done,
                             tile.moment1 + done,
                             tile.moment2 + done,
                             static_cast<const G*>(tile.gradient) + done,
                             advance(static_cast<W*>(tile.weight), done),
                             tile.count - done,
                             WeightStore::cached};
    scalar_kernel().step[kGradientIndex<G>][kWeightIndex<W>][kL2 == L2::yes ? 1 : 0](c, rest);
  }
};

template <class G>
struct SumSquares {
  static void run(const void* gradient, std::size_t count, Accumulators& sums) {
    const hn::ScalableTag<double> d;
    const hn::Rebind<float, decltype(d)> half;
    constexpr std::size_t kLanes = HWY_LANES(double);
    constexpr std::size_t kVectors = kAccumulators / kLanes;
    static_assert(kVectors % 2 == 0, "a vector of floats fills two vectors of doubles");
    hn::Vec<decltype(d)> sum[kVectors];
    for (std::size_t k = 0; k < kVectors; ++k) sum[k] = hn::LoadU(d, sums.data() + k * kLanes);

    const auto* values = static_cast<const G*>(gradient);
    std::size_t i = 0;
    for (; i + kAccumulators <= count; i += kAccumulators) {
      for (std::size_t b = 0; b < kAccumulators * sizeof(G); b += kCacheLineBytes) {
        prefetch(values + i, b);
      }
      for (std::size_t k = 0; k < kVectors; k += 2) {
        const Vec x = load(values + i + k * kLanes);
        const auto low = hn::PromoteTo(d, hn::LowerHalf(half, x));
        const auto high = hn::PromoteTo(d, hn::UpperHalf(half, x));
        sum[k] = hn::MulAdd(low, low, sum[k]);
        sum[k + 1] = hn::MulAdd(high, high, sum[k + 1]);
      }
    }
    for (std::size_t k = 0; k < kVectors; ++k) hn::StoreU(sum[k], d, sums.data() + k * kLanes);
    // `i` is a multiple of kAccumulators: the rest starts at accumulator 0 again.
    scalar_kernel().sum_squares[kGradientIndex<G>](values + i, count - i, sums);
  }
};

constexpr Kernel kKernel =
    make_kernel<Step, SumSquares>(HWY_TARGET == HWY_AVX3 ? "avx512" : "avx2", HWY_TARGET);

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
#else
  static constexpr std::array<Kernel, 0> kList{};
#endif
  return kList;
}

}  // namespace sluice::cpu_adam

#endif  // HWY_ONCE
