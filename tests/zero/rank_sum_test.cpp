// The sum in rank order beside a loop over single elements: every type, counts around whole
// vectors, memory without alignment, in place.

#include "exchange/rank_sum.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "exchange/element_formats.hpp"

namespace sluice::zero {
namespace {

using Bytes = std::vector<std::byte>;

template <typename Format>
struct Of {
  using Stored = typename Format::Stored;
  static constexpr std::size_t kBytes = sizeof(Stored);

  // Any bits: numbers of all sizes, subnormals, infinities and NaNs.
  static Bytes random(std::size_t count, std::mt19937_64& source) {
    Bytes bytes(count * kBytes);
    for (std::byte& each : bytes) each = static_cast<std::byte>(source());
    return bytes;
  }
  static typename Format::Sum value(const std::byte* from, std::size_t i) {
    return load_at<Format>(from, i);
  }
  // Two NaNs are equal: which operand's payload a processor keeps is not said.
  static void expect_sum(const std::vector<const std::byte*>& parts, const std::byte* found,
                         std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      typename Format::Sum sum = value(parts[0], i);
      for (std::size_t part = 1; part < parts.size(); ++part) sum += value(parts[part], i);
      Bytes expected(kBytes);
      store_at<Format>(expected.data(), 0, sum);
      if (std::isnan(value(expected.data(), 0))) {
        ASSERT_TRUE(std::isnan(value(found, i))) << "element " << i;
      } else {
        ASSERT_EQ(Bytes(found + i * kBytes, found + (i + 1) * kBytes), expected)
            << "element " << i << " of " << count << ", " << parts.size() << " ranks";
      }
    }
  }
  static void test(Element element, Executor* executor) {
    std::mt19937_64 source(7);
    for (const std::size_t ranks : {1U, 2U, 3U, 5U}) {
      for (const std::size_t count : {0U, 1U, 31U, 32U, 33U, 64U, 127U, 128U, 1000U, 200'003U}) {
        std::vector<Bytes> memory;
        for (std::size_t rank = 0; rank < ranks; ++rank)
          memory.push_back(random(count + 1, source));
        for (const std::size_t offset : {0U, 1U}) {  // bytes, so odd addresses
          std::vector<const std::byte*> parts;
          parts.reserve(ranks);
          for (const Bytes& part : memory) parts.push_back(part.data() + offset);
          Bytes apart(count * kBytes);
          sum_in_rank_order(parts, apart.data(), count, element, executor);
          expect_sum(parts, apart.data(), count);
          Bytes own = memory.back();
          parts.back() = own.data() + offset;
          sum_in_rank_order(parts, own.data() + offset, count, element, executor);
          parts.back() = memory.back().data() + offset;
          expect_sum(parts, own.data() + offset, count);
        }
      }
    }
  }
};

class RankSum : public testing::TestWithParam<bool> {
 protected:
  Executor* executor() { return GetParam() ? executor_.get() : nullptr; }

 private:
  std::unique_ptr<Executor> executor_ = make_executor(2, ExecutorKind::plain_threads);
};

TEST_P(RankSum, OfFp32IsThatOfSingleElements) {
  Of<Fp32Format>::test(Element::fp32, executor());
}
TEST_P(RankSum, OfFp64IsThatOfSingleElements) {
  Of<Fp64Format>::test(Element::fp64, executor());
}
TEST_P(RankSum, OfBf16IsThatOfSingleElements) {
  Of<Bf16Format>::test(Element::bf16, executor());
}
TEST_P(RankSum, OfFp16IsThatOfSingleElements) {
  Of<Fp16Format>::test(Element::fp16, executor());
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutThreads, RankSum, testing::Bool());

}  // namespace
}  // namespace sluice::zero
