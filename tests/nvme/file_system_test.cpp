#include "sluice/nvme/file_system.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nvme_test_support.hpp"
#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

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

TEST(FileSystemCaution, OfAnAbsentPathIsAnError) {
  EXPECT_THROW(file_system_caution("/absent/path"), IoError);
}

}  // namespace
}  // namespace sluice::nvme
