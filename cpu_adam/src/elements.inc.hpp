// Elements between memory and vectors: widened, narrowed and rounded, whole vectors or the first
// few lanes. Included by vector_kernels.cpp for each instruction set, inside its namespace.

// Without an include guard, on purpose.

HWY_INLINE BitVec lower_half(BitVec bits) {
  return hn::And(bits, hn::Set(Bits(), 0xFFFF));
}

// Every lane is at most 0xFFFF, so the signed conversion never saturates.
HWY_INLINE hn::Vec<Halves> narrow(BitVec value) {
  return hn::DemoteTo(Halves(), hn::BitCast(hn::RebindToSigned<Bits>(), value));
}
// Lanes of a vector that exist in memory: all, or the first `count`.
struct AllLanes {};
struct FirstLanes {
  std::size_t count;
};
template <class D>
HWY_INLINE hn::Vec<D> read(D d, const hn::TFromD<D>* from, AllLanes) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> read(D d, const hn::TFromD<D>* from, FirstLanes first) {
  return hn::MaskedLoad(hn::FirstN(d, first.count), d, from);
}
template <class D>
HWY_INLINE void write(hn::Vec<D> value, D d, hn::TFromD<D>* to, AllLanes) {
  hn::StoreU(value, d, to);
}
template <class D>
HWY_INLINE void write(hn::Vec<D> value, D d, hn::TFromD<D>* to, FirstLanes first) {
  hn::BlendedStore(value, hn::FirstN(d, first.count), d, to);
}

template <class Part>
HWY_INLINE Vec load(const float* from, Part part) {
  return read(Floats(), from, part);
}
template <class Part>
HWY_INLINE Vec load(const Bf16* from, Part part) {
  return float_of(hn::ShiftLeft<16>(hn::PromoteTo(Bits(), read(Halves(), &from->bits, part))));
}
// All targets convert fp16 in hardware, including subnormals.
template <class Part>
HWY_INLINE Vec load(const Fp16* from, Part part) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(Floats(), hn::BitCast(halves, read(Halves(), &from->bits, part)));
}

// to_bf16() of base/dtype.hpp for a value whose only NaN is that of one_nan(). Rounding needs no
// special case for this NaN: 0x7FC00000 + 0x7FFF carries nothing into the upper half.
HWY_INLINE hn::Vec<Halves> round_to_bf16(Vec value) {
  const BitVec in = bits_of(value);
  const BitVec odd = hn::And(hn::ShiftRight<16>(in), hn::Set(Bits(), 1));
  return narrow(hn::ShiftRight<16>(hn::Add(hn::Add(in, hn::Set(Bits(), 0x7FFF)), odd)));
}
// VCVTPS2PH or FCVTN, round to nearest even: the bits of to_fp16().
HWY_INLINE hn::Vec<Halves> round_to_fp16(Vec value) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::BitCast(Halves(), hn::DemoteTo(halves, value));
}

HWY_INLINE Vec one_nan(Vec value) {
  const Vec nan = splat(std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(value), nan, value);
}

// Hardware prefetchers stop at the end of a page. Prefetching one page ahead gives reads 1.1
// (Adam's four streams) to 1.4 times (a single stream) the bandwidth (bench/adam/adam_bench.cpp).
// An address past the end is harmless: a prefetch never faults.
constexpr std::size_t kCacheLineBytes = 64;
constexpr std::uintptr_t kPrefetchBytes = 4096;
HWY_INLINE void prefetch(const void* from, std::size_t offset_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(from) + offset_bytes + kPrefetchBytes;
  hwy::Prefetch(reinterpret_cast<const char*>(address));
}

template <class T, class Part>
HWY_INLINE Vec load_ahead(const void* from, std::size_t i, Part part) {
  const T* at = static_cast<const T*>(from) + i;
  prefetch(at, 0);
  return load(at, part);
}

template <class Part>
HWY_INLINE Vec load_gradient(const TileArguments& tile, std::size_t i, Part part) {
  if (tile.gradient_type == DType::bf16) return load_ahead<Bf16>(tile.gradient, i, part);
  if (tile.gradient_type == DType::fp16) return load_ahead<Fp16>(tile.gradient, i, part);
  return load_ahead<float>(tile.gradient, i, part);
}

// The finite check of a run (finite_check.hpp). Its sums also show where one_nan() has work.
class FiniteCheck {
 public:
  HWY_INLINE FiniteCheck() {}  // a generated constructor would lack the instruction set

  // Non-finite if the master or the first moment is. Also NaN if another moment is NaN: no rule
  // gives a NaN moment beside a master that is a number, except Lion, which has one moment. Sums of
  // several elements may be added up.
  template <std::size_t kMoments>
  static HWY_INLINE Vec sum_of(Vec p, const Moments& moments) {
    if constexpr (kMoments == 0) return p;
    return hn::Add(p, moments[0]);
  }
  // Lanes in which the sum is an infinity or a NaN.
  static HWY_INLINE hn::Mask<Floats> bad_lanes(Vec sum) {
#if HWY_TARGET == HWY_AVX3
    constexpr int kInfinities = 0x18, kNans = 0x81;  // one instruction; hn::IsFinite takes two
    return hn::Mask<Floats>{_mm512_fpclass_ps_mask(sum.raw, kInfinities | kNans)};
#else
    return hn::IsNaN(hn::Sub(sum, sum));
#endif
  }
  // Records an alarm, and replaces every NaN of an element by that of one_nan().
  template <std::size_t kMoments>
  HWY_INLINE void alarm(Vec& p, Moments& moments) {
    finite_ = false;
    p = one_nan(p);
    for (std::size_t k = 0; k < kMoments; ++k) moments[k] = one_nan(moments[k]);
  }
  HWY_INLINE void add_fp16(hn::Vec<Halves> weight) {
    fp16_ = hn::Max(fp16_, hn::And(weight, hn::Set(Halves(), 0x7FFF)));
  }
  HWY_INLINE bool finite() const {
    constexpr std::uint16_t kInfinity = 0x7C00;
    return finite_ && hn::AllTrue(Halves(), hn::Lt(fp16_, hn::Set(Halves(), kInfinity)));
  }

 private:
  bool finite_ = true;
  hn::Vec<Halves> fp16_ = hn::Zero(Halves());  // the largest magnitudes of weights in fp16
};

template <class D, class T>
HWY_INLINE void put(WeightStore how, hn::Vec<D> value, D d, T* to, AllLanes part) {
  if (how == WeightStore::streaming) {
    hn::Stream(value, d, to);
  } else {
    write(value, d, to, part);
  }
}
template <class D, class T>
HWY_INLINE void put(WeightStore, hn::Vec<D> value, D d, T* to, FirstLanes part) {
  write(value, d, to, part);
}

HWY_INLINE hn::Vec<Halves> round_to(WeightType type, Vec value, FiniteCheck& check) {
  if (type == WeightType::bf16) return round_to_bf16(value);
  const hn::Vec<Halves> weight = round_to_fp16(value);
  check.add_fp16(weight);
  return weight;
}

template <class Part>
HWY_INLINE void store_weight(const TileArguments& tile, std::size_t i, Vec value, Part part,
                             FiniteCheck& check) {
  if (tile.weight_type == WeightType::none) return;
  if (tile.weight_type == WeightType::fp32)
    return put(tile.store, value, Floats(), static_cast<float*>(tile.weight) + i, part);
  put(tile.store, round_to(tile.weight_type, value, check), Halves(),
      static_cast<std::uint16_t*>(tile.weight) + i, part);
}

// Streams the 16-bit weights of two vectors.
HWY_INLINE void stream_weights(const TileArguments& tile, std::size_t i, Vec first, Vec second,
                               FiniteCheck& check) {
  const hn::Repartition<std::uint16_t, Floats> both;
  hn::Stream(hn::Combine(both, round_to(tile.weight_type, second, check),
                         round_to(tile.weight_type, first, check)),
             both, static_cast<std::uint16_t*>(tile.weight) + i);
}

// split() and join() of the public header.
template <MasterLayout kLayout, class Part>
HWY_INLINE Vec load_master(const TileArguments& tile, std::size_t i, Part part) {
  if constexpr (kLayout == MasterLayout::fp32) return load_ahead<float>(tile.master, i, part);
  const std::uint16_t* low = tile.low + i;
  prefetch(low, 0);
  const hn::RebindToSigned<Bits> signed_bits;
  const hn::RebindToSigned<Halves> signed_halves;
  const auto rest =
      hn::PromoteTo(signed_bits, hn::BitCast(signed_halves, read(Halves(), low, part)));
  return float_of(
      hn::Add(bits_of(load_ahead<Bf16>(tile.master, i, part)), hn::BitCast(Bits(), rest)));
}

template <MasterLayout kLayout, class Part>
HWY_INLINE void store_master(const TileArguments& tile, std::size_t i, Vec value, Part part) {
  if constexpr (kLayout == MasterLayout::fp32) {
    write(value, Floats(), static_cast<float*>(tile.master) + i, part);
  } else {
    const BitVec bits = bits_of(value);
    const BitVec rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Set(Bits(), 0x8000)));
    write(narrow(rounded), Halves(), static_cast<std::uint16_t*>(tile.master) + i, part);
    write(narrow(lower_half(bits)), Halves(), tile.low + i, part);
  }
}

// noise_of() of rounding.hpp. `places`: the lanes' positions, counted from element i of the run.
HWY_INLINE BitVec noise_at(const RoundingKey& key, std::size_t i, BitVec places) {
  const BitVec number = hn::Add(places, hn::Set(Bits(), key.first + static_cast<std::uint32_t>(i)));
  BitVec x = hn::Xor(number, hn::Set(Bits(), key.keys[0]));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(Bits(), kMix1));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Xor(x, hn::Set(Bits(), key.keys[1]));
  x = hn::Mul(x, hn::Set(Bits(), kMix2));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// Bits whose upper half is the value, rounded stochastically.
template <int kShift>
HWY_INLINE BitVec with_noise(Vec value, BitVec noise) {
  const BitVec bits = hn::ShiftRight<kShift>(noise);
  return hn::Add(bits_of(value), kShift == 16 ? bits : lower_half(bits));
}

template <int kShift, class Part>
HWY_INLINE void store_rounded(Bf16* to, Vec value, BitVec noise, Part part) {
  write(narrow(hn::ShiftRight<16>(with_noise<kShift>(value, noise))), Halves(), &to->bits, part);
}

template <class Part>
HWY_INLINE void store_moments(const TileArguments& tile, std::size_t i, const Moments& moments,
                              std::size_t count, float, Part part) {
  for (std::size_t k = 0; k < count; ++k)
    write(moments[k], Floats(), static_cast<float*>(tile.moments[k]) + i, part);
}
template <class Part>
HWY_INLINE void store_moments(const TileArguments& tile, std::size_t i, const Moments& moments,
                              std::size_t count, Bf16, Part part) {
  if (count == 0) return;
  // Iota from 0 is a constant; from anything else it goes through memory.
  const BitVec noise = noise_at(tile.rounding, i, hn::Iota(Bits(), 0));
  const auto to = [&](std::size_t k) { return static_cast<Bf16*>(tile.moments[k]) + i; };
  store_rounded<noise_shift(0)>(to(0), moments[0], noise, part);
  if (count > 1) store_rounded<noise_shift(1)>(to(1), moments[1], noise, part);
  if (count > 2) store_rounded<noise_shift(2)>(to(2), moments[2], noise, part);
}
