#include "sluice/models/philox.hpp"

#include <gtest/gtest.h>

#include <set>

namespace sluice::models {
namespace {

// Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32-10).
TEST(Philox, GivesThePublishedNumbers) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(
      philox4x32({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, {0xA4093822U, 0x299F31D0U}),
      (PhiloxBlock{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

TEST(PhiloxStream, EveryPartOfItsNameChangesTheNumbers) {
  const auto first = [](PhiloxDomain domain, std::uint64_t seed,
                        const std::array<std::uint64_t, 4>& ids) {
    return philox_stream(domain, seed, ids).block(0);
  };
  constexpr std::uint64_t kHigh = 1ULL << 40U;
  std::set<PhiloxBlock> seen;
  seen.insert(first(PhiloxDomain::dropout, 7, {1, 2, 3, 4}));
  seen.insert(first(PhiloxDomain::windows, 7, {1, 2, 3, 4}));
  seen.insert(first(PhiloxDomain::dropout, 8, {1, 2, 3, 4}));
  seen.insert(first(PhiloxDomain::dropout, 7 + kHigh, {1, 2, 3, 4}));
  for (std::size_t i = 0; i < 4; ++i) {
    std::array<std::uint64_t, 4> ids{1, 2, 3, 4};
    ids[i] += 10;
    seen.insert(first(PhiloxDomain::dropout, 7, ids));
    ids[i] += kHigh;
    seen.insert(first(PhiloxDomain::dropout, 7, ids));
  }
  seen.insert(first(PhiloxDomain::dropout, 7, {2, 1, 3, 4}));
  EXPECT_EQ(seen.size(), 13U);
  EXPECT_EQ(first(PhiloxDomain::dropout, 7, {1, 2, 3, 4}),
            first(PhiloxDomain::dropout, 7, {1, 2, 3, 4}));
}

TEST(PhiloxStream, BlocksDifferByBothHalvesOfTheIndex) {
  const PhiloxStream stream = philox_stream(PhiloxDomain::dropout, 1, {0, 0, 0, 0});
  const std::set<PhiloxBlock> seen{stream.block(0), stream.block(1), stream.block(1ULL << 32U)};
  EXPECT_EQ(seen.size(), 3U);
}

}  // namespace
}  // namespace sluice::models
