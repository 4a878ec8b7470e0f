#include "sluice/models/philox.hpp"

namespace sluice::models {
namespace {

// Multipliers and key increments of Philox 4x32 (Salmon et al. 2011, section 3.5 and table 2 of its
// code).
constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
constexpr int kRounds = 10;

constexpr std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32U);
}

}  // namespace

PhiloxBlock philox4x32(const PhiloxBlock& counter, const std::array<std::uint32_t, 2>& key) {
  PhiloxBlock x = counter;
  std::array<std::uint32_t, 2> k = key;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * x[0];
    const std::uint64_t product1 = kMultiplier1 * x[2];
    x = {high(product1) ^ x[1] ^ k[0], low(product1), high(product0) ^ x[3] ^ k[1], low(product0)};
    k[0] += kWeyl0;
    k[1] += kWeyl1;
  }
  return x;
}

PhiloxStream philox_stream(PhiloxDomain domain, std::uint64_t seed,
                           const std::array<std::uint64_t, 4>& ids) {
  PhiloxBlock state =
      philox4x32({static_cast<std::uint32_t>(domain), 0, 0, 0}, {low(seed), high(seed)});
  for (const std::uint64_t id : ids) {
    // The whole state enters the next block: half as key, half as counter.
    state = philox4x32({low(id), high(id), state[2], state[3]}, {state[0], state[1]});
  }
  return PhiloxStream{{state[0], state[1]}, {state[2], state[3]}};
}

}  // namespace sluice::models
