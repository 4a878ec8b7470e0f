#pragma once
// Memory of a step in every combination of types, with guard elements around each span, and its
// bitwise comparison.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam::test {

using Sizes = std::initializer_list<std::size_t>;

inline constexpr DType kGradientTypes[] = {DType::fp32, DType::bf16, DType::fp16};
inline constexpr WeightType kWeightTypes[] = {WeightType::none, WeightType::fp32, WeightType::bf16,
                                              WeightType::fp16};

// `count` zeroed elements behind `offset` guard elements and before 16 more.
template <class T>
class Guarded {
 public:
  Guarded(std::size_t count, std::size_t offset)
      : values_(offset + count + kGuard), offset_(offset), count_(count) {
    std::memset(static_cast<void*>(values_.data()), kFill, values_.size() * sizeof(T));
    for (T& value : span()) value = T{};
  }
  std::span<T> span() { return std::span<T>(values_).subspan(offset_, count_); }
  std::span<const T> span() const { return std::span<const T>(values_).subspan(offset_, count_); }
  bool same_bits(const Guarded& other) const {
    return values_.size() == other.values_.size() &&
           std::memcmp(values_.data(), other.values_.data(), values_.size() * sizeof(T)) == 0;
  }

 private:
  static constexpr std::size_t kGuard = 16;
  static constexpr int kFill = 0x5A;
  std::vector<T> values_;
  std::size_t offset_;
  std::size_t count_;
};

struct Layout {
  MasterLayout master = MasterLayout::fp32;
  DType moments = DType::fp32;
};
inline constexpr Layout kLayouts[] = {{MasterLayout::fp32, DType::fp32},
                                      {MasterLayout::fp32, DType::bf16},
                                      {MasterLayout::split, DType::fp32},
                                      {MasterLayout::split, DType::bf16}};
inline std::string name_of(const Layout& layout) {
  return std::string(layout.master == MasterLayout::split ? "split" : "fp32") +
         (layout.moments == DType::bf16 ? ", bf16 moments" : "");
}

// One optimizer of each rule, with its decay.
inline std::vector<OptimizerConfig> every_optimizer() {
  return {AdamConfig{.weight_decay = 0.1, .decay = WeightDecay::l2},
          AdamConfig{.weight_decay = 0.1},
          AdamConfig{.weight_decay = 0.1, .amsgrad = true, .maximize = true},
          AdagradConfig{.learning_rate_decay = 0.1, .weight_decay = 0.1},
          LionConfig{.weight_decay = 0.1},
          SgdConfig{.weight_decay = 0.1, .maximize = true},
          SgdConfig{.momentum = 0.9, .dampening = 0.1},
          SgdConfig{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}};
}

// Thread-compatible: callers synchronise.
struct AdamState {
  explicit AdamState(std::size_t count, std::size_t offset = 0)
      : p(count, offset),
        m(count, offset),
        v(count, offset),
        most(count, offset),
        high(count, offset),
        low(count, offset),
        m16{Guarded<Bf16>(count, offset), Guarded<Bf16>(count, offset),
            Guarded<Bf16>(count, offset)},
        g32(count, offset),
        gbf(count, offset),
        gfp(count, offset),
        w32(count, offset),
        wbf(count, offset),
        wfp(count, offset) {}

  Guarded<float> p, m, v, most;  // fp32: master and up to three moments
  Guarded<Bf16> high;            // the master as a split master
  Guarded<std::uint16_t> low;
  std::array<Guarded<Bf16>, kMostMoments> m16;  // and bf16 moments
  Guarded<float> g32;
  Guarded<Bf16> gbf;
  Guarded<Fp16> gfp;
  Guarded<float> w32;
  Guarded<Bf16> wbf;
  Guarded<Fp16> wfp;

  std::size_t count() const { return p.span().size(); }

  // One gradient, rounded to each type.
  void set_gradient(std::size_t i, float value) {
    g32.span()[i] = value;
    gbf.span()[i] = to_bf16(value);
    gfp.span()[i] = to_fp16(value);
  }
  void set(std::size_t i, float master, float moment1, float moment2, float gradient) {
    p.span()[i] = master;
    m.span()[i] = moment1;
    v.span()[i] = most.span()[i] = moment2;
    const SplitValue halves = split(master);
    high.span()[i] = halves.weight;
    low.span()[i] = halves.low;
    m16[0].span()[i] = to_bf16(moment1);
    m16[1].span()[i] = m16[2].span()[i] = to_bf16(moment2);
    set_gradient(i, gradient);
  }
  // States as in the middle of a training, with a sign change in every second moment.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < count(); ++i) {
      const float g = normal(random);
      set(i, normal(random), 0.1F * normal(random), 0.01F * g * g + 1e-12F, g);
    }
  }

  GradientSpan gradient(DType type, std::size_t first, std::size_t length) const {
    if (type == DType::bf16) return gbf.span().subspan(first, length);
    if (type == DType::fp16) return gfp.span().subspan(first, length);
    return g32.span().subspan(first, length);
  }
  WeightSpan weight(WeightType type, std::size_t first, std::size_t length) {
    if (type == WeightType::fp32) return w32.span().subspan(first, length);
    if (type == WeightType::bf16) return wbf.span().subspan(first, length);
    if (type == WeightType::fp16) return wfp.span().subspan(first, length);
    return std::monostate{};
  }
  // A tile of Adam with fp32 states.
  Tile tile(DType g, WeightType w, std::size_t first, std::size_t length) {
    return tile(AdamConfig{}, {}, g, w, first, length);
  }
  Tile tile(DType g = DType::fp32, WeightType w = WeightType::none) {
    return tile(g, w, 0, count());
  }
  // A split master takes no other weight, for any `w`.
  Tile tile(const OptimizerConfig& config, const Layout& layout, DType g, WeightType w,
            std::size_t first, std::size_t length) {
    Tile out{.master = p.span().subspan(first, length),
             .gradient = gradient(g, first, length),
             .weight = weight(w, first, length),
             .first_element = first};
    if (layout.master == MasterLayout::split) {
      out.master =
          SplitMaster{high.span().subspan(first, length), low.span().subspan(first, length)};
      out.weight = std::monostate{};
    }
    Guarded<float>* const m32[kMostMoments] = {&m, &v, &most};
    for (std::size_t k = 0; k < moment_count(config); ++k) {
      if (layout.moments == DType::bf16) {
        out.moments[k] = m16[k].span().subspan(first, length);
      } else {
        out.moments[k] = m32[k]->span().subspan(first, length);
      }
    }
    return out;
  }
  bool same_bits(const AdamState& other) const {
    return p.same_bits(other.p) && m.same_bits(other.m) && v.same_bits(other.v) &&
           most.same_bits(other.most) && high.same_bits(other.high) && low.same_bits(other.low) &&
           m16[0].same_bits(other.m16[0]) && m16[1].same_bits(other.m16[1]) &&
           m16[2].same_bits(other.m16[2]) && g32.same_bits(other.g32) && gbf.same_bits(other.gbf) &&
           gfp.same_bits(other.gfp) && w32.same_bits(other.w32) && wbf.same_bits(other.wbf) &&
           wfp.same_bits(other.wfp);
  }
};

// Zeros, subnormals, the ends of the ranges of all three types, infinities, NaN of both signs and
// with payloads, signalling NaN: every combination in master, moments and gradient.
inline AdamState special_states() {
  using Limits = std::numeric_limits<float>;
  const float specials[] = {0.0F,
                            -0.0F,
                            1.0F,
                            -3.0F,
                            Limits::denorm_min(),
                            -1e-40F,
                            Limits::min(),
                            6e-8F,
                            65519.9F,
                            65520.0F,
                            Limits::max(),
                            -Limits::max(),
                            Limits::infinity(),
                            -Limits::infinity(),
                            std::bit_cast<float>(0x7FC12345U),
                            std::bit_cast<float>(0xFFC00001U),
                            std::bit_cast<float>(0x7F800001U)};
  const std::size_t n = std::size(specials);
  AdamState states(n * n * n * n);
  for (std::size_t i = 0; i < states.count(); ++i)
    states.set(i, specials[i % n], specials[i / n % n], specials[i / n / n % n],
               specials[i / n / n / n]);
  return states;
}

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

}  // namespace sluice::cpu_adam::test
