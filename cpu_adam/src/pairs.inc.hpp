// Steps in which all memory has 16-bit elements (split master, bf16 moments, bf16 gradient), two
// vectors at a time. vector_kernels.cpp includes this file for each instruction set, inside its
// namespace. Elements at even positions are the lower halves of 32-bit lanes, elements at odd
// positions the upper halves. Shifts and masks widen and narrow elements; nothing crosses lanes.

// Without an include guard, on purpose.

struct Pair {
  Vec even, odd;
};

HWY_INLINE BitVec upper_half(BitVec bits) {
  return hn::And(bits, hn::Set(Bits(), 0xFFFF0000U));
}

HWY_INLINE BitVec load_pairs(const void* from, std::size_t i) {
  const hn::Repartition<std::uint16_t, Bits> words;
  const auto* at = static_cast<const std::uint16_t*>(from) + i;
  prefetch(at, 0);
  return hn::BitCast(Bits(), hn::LoadU(words, at));
}
HWY_INLINE void store_pairs(void* to, std::size_t i, BitVec pairs) {
  const hn::Repartition<std::uint16_t, Bits> words;
  hn::StoreU(hn::BitCast(words, pairs), words, static_cast<std::uint16_t*>(to) + i);
}
// Stores the upper halves of both vectors.
HWY_INLINE void store_uppers(void* to, std::size_t i, BitVec even, BitVec odd) {
  store_pairs(to, i, hn::Or(hn::ShiftRight<16>(even), upper_half(odd)));
}

HWY_INLINE Pair load_bf16_pairs(const void* from, std::size_t i) {
  const BitVec pairs = load_pairs(from, i);
  return {float_of(hn::ShiftLeft<16>(pairs)), float_of(upper_half(pairs))};
}

HWY_INLINE Pair load_split_pairs(const TileArguments& tile, std::size_t i) {
  const hn::RebindToSigned<Bits> signed_bits;
  const auto low = hn::BitCast(signed_bits, load_pairs(tile.low, i));
  const auto even = hn::ShiftRight<16>(hn::ShiftLeft<16>(low));
  const auto odd = hn::ShiftRight<16>(low);
  const Pair high = load_bf16_pairs(tile.master, i);
  return {float_of(hn::Add(bits_of(high.even), hn::BitCast(Bits(), even))),
          float_of(hn::Add(bits_of(high.odd), hn::BitCast(Bits(), odd)))};
}
HWY_INLINE void store_split_pairs(const TileArguments& tile, std::size_t i, const Pair& p) {
  const BitVec even = bits_of(p.even), odd = bits_of(p.odd);
  const BitVec half = hn::Set(Bits(), 0x8000);
  store_uppers(tile.master, i, hn::Add(even, half), hn::Add(odd, half));
  store_pairs(tile.low, i, hn::Or(lower_half(even), hn::ShiftLeft<16>(odd)));
}

template <int kShift>
HWY_INLINE void store_rounded_pairs(void* to, std::size_t i, Vec even, Vec odd, BitVec even_noise,
                                    BitVec odd_noise) {
  store_uppers(to, i, with_noise<kShift>(even, even_noise), with_noise<kShift>(odd, odd_noise));
}

template <class R>
HWY_INLINE void pairs_at(const Lanes& c, Vec factor, const TileArguments& tile, std::size_t i,
                         FiniteCheck& check) {
  Moments even, odd;
  for (std::size_t k = 0; k < R::kMoments; ++k) {
    const Pair moment = load_bf16_pairs(tile.moments[k], i);
    even[k] = moment.even;
    odd[k] = moment.odd;
  }
  Pair p = load_split_pairs(tile, i);
  const Pair gradient = load_bf16_pairs(tile.gradient, i);
  R::update(c, hn::Mul(gradient.even, factor), p.even, even);
  R::update(c, hn::Mul(gradient.odd, factor), p.odd, odd);
  const Vec sum = hn::Add(FiniteCheck::sum_of<R::kMoments>(p.even, even),
                          FiniteCheck::sum_of<R::kMoments>(p.odd, odd));
  if (HWY_UNLIKELY(!hn::AllFalse(Floats(), FiniteCheck::bad_lanes(sum)))) {
    check.alarm<R::kMoments>(p.even, even);
    check.alarm<R::kMoments>(p.odd, odd);
  }
  store_split_pairs(tile, i, p);
  if constexpr (R::kMoments > 0) {
    const BitVec twice = hn::ShiftLeft<1>(hn::Iota(Bits(), 0));
    const BitVec even_noise = noise_at(tile.rounding, i, twice);
    const BitVec odd_noise = noise_at(tile.rounding, i + 1, twice);
    const auto store = [&]<int kShift>(std::size_t k) {
      store_rounded_pairs<kShift>(tile.moments[k], i, even[k], odd[k], even_noise, odd_noise);
    };
    store.template operator()<noise_shift(0)>(0);
    if constexpr (R::kMoments > 1) store.template operator()<noise_shift(1)>(1);
    if constexpr (R::kMoments > 2) store.template operator()<noise_shift(2)>(2);
  }
}
