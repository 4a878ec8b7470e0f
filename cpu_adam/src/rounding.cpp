#include "rounding.hpp"

namespace sluice::cpu_adam {

namespace {

// Finalizer of SplitMix64 (Steele, Lea & Flood 2014).
std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

}  // namespace

RoundingKey rounding_key(const Step& step, std::uint64_t first) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;
  std::uint64_t key = mix64(step.seed + kGolden);
  key = mix64(key ^ (static_cast<std::uint64_t>(step.step) + kGolden));
  key = mix64(key ^ ((first >> 32U) + kGolden));
  return {static_cast<std::uint32_t>(first),
          {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32U)}};
}

SplitValue split(float value) {
  return halves_of(value);
}

float join(SplitValue value) {
  return joined(value);
}

}  // namespace sluice::cpu_adam
