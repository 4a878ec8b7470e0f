// Copies past the caches have the bytes of ordinary copies, at any alignment and size.

#include "sluice/cpu_adam/copy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "message_of.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cpu_adam {
namespace {

TEST(CopyPastCaches, CopiesTheseBytesAndNoOthers) {
  std::vector<std::byte> from(1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t offset = 0; offset < 66; ++offset) {
    for (const std::size_t size : {0, 1, 15, 16, 17, 63, 64, 65, 300}) {
      std::vector<std::byte> to(500, std::byte{0xEE});
      copy_past_caches(std::span(to).subspan(offset, size), std::span(from).subspan(3, size));
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool copied = i >= offset && i < offset + size;
        ASSERT_EQ(to[i], copied ? from[3 + i - offset] : std::byte{0xEE})
            << "offset " << offset << ", size " << size << ", byte " << i;
      }
    }
  }
}

TEST(CopyPastCaches, TakesNoMemoryAtAll) {
  copy_past_caches({}, {});
}

TEST(CopyPastCaches, RefusesUnequalSizes) {
  std::vector<std::byte> bytes(8);
  EXPECT_THAT(test::message_of<InvalidArgument>([&] {
                copy_past_caches(std::span(bytes).first(4), std::span<const std::byte>(bytes));
              }),
              ::testing::HasSubstr("a copy of 8 bytes to a place of 4"));
}

}  // namespace
}  // namespace sluice::cpu_adam
