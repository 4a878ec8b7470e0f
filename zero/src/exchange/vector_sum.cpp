// Sums over ranks by Highway's vectors. This file is compiled once for every instruction set.

// clang-format off
// AVX2, AVX-512 and NEON have their own; the scalar loop of rank_sum.cpp does the others.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (~(HWY_AVX2 | HWY_AVX3 | HWY_NEON | HWY_SCALAR | HWY_EMU128))
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exchange/vector_sum.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cstdint>

#include "exchange/vector_sum.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::zero {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;  // as many 16-bit elements as Floats has lanes

// How vectors of a type are read, summed and written. Memory needs no alignment.
template <typename T>
struct Plain {
  using Tag = hn::ScalableTag<T>;
  static constexpr std::size_t kElementBytes = sizeof(T);
  static HWY_INLINE hn::Vec<Tag> load(const std::byte* from) {
    return hn::LoadU(Tag(), reinterpret_cast<const T*>(from));
  }
  static HWY_INLINE void store(hn::Vec<Tag> sum, std::byte* to) {
    hn::StoreU(sum, Tag(), reinterpret_cast<T*>(to));
  }
};

HWY_INLINE hn::Vec<Halves> load_halves(const std::byte* from) {
  return hn::LoadU(Halves(), reinterpret_cast<const std::uint16_t*>(from));
}
HWY_INLINE void store_halves(hn::Vec<Halves> halves, std::byte* to) {
  hn::StoreU(halves, Halves(), reinterpret_cast<std::uint16_t*>(to));
}

// to_bf16() and to_fp32() of base/dtype.hpp.
struct Bf16Vectors {
  using Tag = Floats;
  static constexpr std::size_t kElementBytes = 2;
  static HWY_INLINE hn::Vec<Floats> load(const std::byte* from) {
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), load_halves(from))));
  }
  static HWY_INLINE void store(hn::Vec<Floats> sum, std::byte* to) {
    const auto bits = hn::BitCast(Bits(), sum);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(Bits(), 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(Bits(), 0x7FFF)), odd));
    const auto quiet = hn::Or(upper, hn::Set(Bits(), 0x40));
    const auto is_nan = hn::RebindMask(Bits(), hn::IsNaN(sum));
    const auto value = hn::IfThenElse(is_nan, quiet, rounded);
    // Every lane is at most 0xFFFF, so the signed conversion never saturates.
    store_halves(hn::DemoteTo(Halves(), hn::BitCast(hn::RebindToSigned<Bits>(), value)), to);
  }
};

// These targets convert fp16 in hardware, with the bits of to_fp16() and to_fp32().
struct Fp16Vectors {
  using Tag = Floats;
  using Stored = hn::Rebind<hwy::float16_t, Floats>;
  static constexpr std::size_t kElementBytes = 2;
  static HWY_INLINE hn::Vec<Floats> load(const std::byte* from) {
    return hn::PromoteTo(Floats(), hn::BitCast(Stored(), load_halves(from)));
  }
  static HWY_INLINE void store(hn::Vec<Floats> sum, std::byte* to) {
    store_halves(hn::BitCast(Halves(), hn::DemoteTo(Stored(), sum)), to);
  }
};

// Two vectors at a time. With one, and with four, sums of parts in the last cache took 3 to 5 %
// longer on an AMD EPYC.
template <typename Vectors>
HWY_INLINE std::size_t sum_of(const std::byte* const* parts, std::size_t part_count, std::byte* to,
                              std::size_t begin, std::size_t end) {
  constexpr std::size_t kAtOnce = 2;
  const std::size_t lanes = hn::Lanes(typename Vectors::Tag());
  const std::size_t vector_bytes = lanes * Vectors::kElementBytes;
  const std::size_t steps = (end - begin) / (kAtOnce * lanes);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t at = begin * Vectors::kElementBytes + step * kAtOnce * vector_bytes;
    const auto load = [&](std::size_t part, std::size_t vector) HWY_ATTR {
      return Vectors::load(parts[part] + at + vector * vector_bytes);
    };
    auto a = load(0, 0);
    auto b = load(0, 1);
    for (std::size_t part = 1; part < part_count; ++part) {
      a = hn::Add(a, load(part, 0));
      b = hn::Add(b, load(part, 1));
    }
    Vectors::store(a, to + at);
    Vectors::store(b, to + at + vector_bytes);
  }
  return begin + steps * kAtOnce * lanes;
}

std::size_t sum(const std::byte* const* parts, std::size_t part_count, std::byte* to,
                std::size_t begin, std::size_t end, Element element) {
  switch (element) {
    case Element::fp32:
      return sum_of<Plain<float>>(parts, part_count, to, begin, end);
    case Element::fp64:
      return sum_of<Plain<double>>(parts, part_count, to, begin, end);
    case Element::bf16:
      return sum_of<Bf16Vectors>(parts, part_count, to, begin, end);
    case Element::fp16:
      return sum_of<Fp16Vectors>(parts, part_count, to, begin, end);
    case Element::bytes:
      break;
  }
  return begin;
}

#else

std::size_t sum(const std::byte* const*, std::size_t, std::byte*, std::size_t begin, std::size_t,
                Element) {
  return begin;
}

#endif  // HWY_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace sluice::zero
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluice::zero {

HWY_EXPORT(sum);

std::size_t sum_vectors(std::span<const std::byte* const> parts, std::byte* to, std::size_t begin,
                        std::size_t end, Element element) {
  return HWY_DYNAMIC_DISPATCH(sum)(parts.data(), parts.size(), to, begin, end, element);
}

}  // namespace sluice::zero

#endif  // HWY_ONCE
