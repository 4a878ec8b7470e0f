// Files on a drive of large logical blocks, as the kernel would tell of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

namespace {

// In place of the kernel's answer for each file; 0: the kernel's.
std::uint32_t told_alignment = 0;

}  // namespace

// In place of the C library's. The fields are at their offsets in the kernel's ABI, because headers
// may be older.
extern "C" int statx(int directory, const char* path, int flags, unsigned mask,
                     struct statx* info) noexcept {
  const long result = ::syscall(__NR_statx, directory, path, flags, mask, info);
  if (result != 0 || told_alignment == 0) return static_cast<int>(result);
  info->stx_mask |= 0x2000U;
  char* bytes = reinterpret_cast<char*>(info);
  std::memcpy(bytes + 0x98, &told_alignment, sizeof(told_alignment));
  std::memcpy(bytes + 0x9c, &told_alignment, sizeof(told_alignment));
  return 0;
}

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LargeBlocks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!SwapFile(path_, OpenMode::create, DirectIo::automatic).direct())
      GTEST_SKIP() << "the file system of the tests has no direct I/O";
  }
  void TearDown() override { told_alignment = 0; }

  test::TempDir dir_;
  const std::string path_ = dir_.file("f");
};

TEST_F(LargeBlocks, OfUpTo4KiBAreMovedDirectly) {
  for (const std::uint32_t block_bytes : {512U, 4096U}) {
    told_alignment = block_bytes;
    const SwapFile file(path_, OpenMode::create, DirectIo::automatic);
    EXPECT_TRUE(file.direct()) << file.why_buffered();
    EXPECT_EQ(file.offset_alignment(), block_bytes);
  }
}

// Ranges of files begin at multiples of 4 KiB: two in one block would overwrite each other.
TEST_F(LargeBlocks, AboveThatGoThroughThePageCache) {
  for (const std::uint32_t block_bytes : {8192U, 16384U}) {
    told_alignment = block_bytes;
    for (const OpenMode mode : {OpenMode::create, OpenMode::read_write, OpenMode::read_only}) {
      const SwapFile file(path_, mode, DirectIo::automatic);
      EXPECT_FALSE(file.direct());
      EXPECT_EQ(file.offset_alignment(), 1U);
      EXPECT_EQ(file.memory_alignment(), 1U);
      EXPECT_THAT(file.why_buffered(), HasSubstr(format_bytes(block_bytes)));
      EXPECT_THAT(message_of<IoError>([&] { SwapFile(path_, mode, DirectIo::on); }),
                  AllOf(HasSubstr(path_), HasSubstr(format_bytes(block_bytes)), HasSubstr("auto")));
    }
  }
}

}  // namespace
}  // namespace sluice::nvme
