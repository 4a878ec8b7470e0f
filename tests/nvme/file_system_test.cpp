#include "sluice/nvme/file_system.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include "nvme_test_support.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/file.hpp"
#include "temp_dir.hpp"

// This program has its own statvfs(): every file system has so many blocks, where this is not 0.
namespace {
std::uint64_t told_blocks = 0;
}
extern "C" int statvfs(const char* path, struct statvfs* info) noexcept {
  using Call = int(const char*, struct statvfs*);
  static auto* const call = reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, "statvfs"));
  const int result = call(path, info);
  if (told_blocks != 0) {
    info->f_blocks = info->f_bavail = told_blocks;
    info->f_frsize = std::uint64_t{1} << 20U;
  }
  return result;
}

namespace sluice::nvme {
namespace {

using ::testing::HasSubstr;

TEST(FileSystemKind, SaysWhatIsNotALocalDrive) {
  EXPECT_EQ(file_system_kind(0xEF53).name, "ext4");
  EXPECT_EQ(file_system_kind(0xEF53).caution, "");
  EXPECT_THAT(std::string(file_system_kind(0x6969).caution), HasSubstr("network"));
  EXPECT_THAT(std::string(file_system_kind(0xFF534D42).caution), HasSubstr("network"));
  EXPECT_THAT(std::string(file_system_kind(0x794C7630).caution), HasSubstr("container"));
  EXPECT_EQ(file_system_kind(12345).name, "");
  EXPECT_EQ(file_system_kind(12345).caution, "");
}

TEST(FileSystemCaution, IsOfTheFileSystemBelowThePath) {
  const test::TempDir dir;
  const ScopedMount tmpfs(dir.path(), "tmpfs", "size=1m");
  if (!tmpfs.why_not().empty()) GTEST_SKIP() << tmpfs.why_not();
  EXPECT_THAT(file_system_caution(dir.path()), HasSubstr(dir.path() + " is on tmpfs, files there"));
  EXPECT_TRUE(is_memory_file_system(dir.path()));
  EXPECT_FALSE(is_memory_file_system("/proc"));
  const ScopedMount ramfs(dir.path(), "ramfs", "");
  ASSERT_EQ(ramfs.why_not(), "");
  EXPECT_THAT(file_system_caution(dir.path()), HasSubstr("is on ramfs"));
}

TEST(FreeDiskBytes, OfMoreBlocksThanAnyDriveHasAreTheMost) {
  const test::TempDir dir;
  for (const unsigned power : {41U, 42U, 43U, 44U, 62U}) {
    told_blocks = std::uint64_t{1} << power;
    const std::uint64_t free = free_disk_bytes(dir.path());
    told_blocks = 0;
    EXPECT_EQ(free, power == 41 ? kUnknownFreeBytes / 2 : kUnknownFreeBytes) << power;
  }
}

TEST(FileSystemCaution, OfAnAbsentPathIsAnError) {
  EXPECT_THROW(file_system_caution("/absent/path"), IoError);
}

}  // namespace
}  // namespace sluice::nvme
