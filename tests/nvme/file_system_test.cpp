#include "sluice/nvme/file_system.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include <vector>

#include "faulty_backend.hpp"
#include "in_child.hpp"
#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_engine.hpp"
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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

// A file system of so many blocks does not tell how many are free.
TEST(FreeDiskBytes, ThatAreUnknownAreNoNumberInAMessageOfNoSpace) {
  const test::TempDir dir;
  SwapFile file(dir.file("f"), OpenMode::create, DirectIo::off);
  FaultyOptions options;
  options.rule = [](const IoRequest&, std::uint64_t) { return Fault::with(-ENOSPC); };
  IoEngine engine(
      std::make_unique<FaultyBackend>(make_backend(BackendKind::threads, 8, 1).backend, options),
      {4096, 8});
  told_blocks = std::uint64_t{1} << 62U;
  const std::string written = message_of<IoError>(
      [&] { engine.begin_write(file, 0, std::vector<std::byte>(4096)).finish(); });
  const std::string allocated = test::run_in_child([&]() -> std::string {
    test::deny(__NR_fallocate, ENOSPC);
    file.allocate(8 * kKiB);
    return "no error";
  });
  told_blocks = 0;
  for (const std::string& said : {written, allocated})
    EXPECT_THAT(said, AllOf(HasSubstr("how much is free cannot be told"), Not(HasSubstr("EiB"))));
}

TEST(FileSystemCaution, OfAnAbsentPathIsAnError) {
  EXPECT_THROW(file_system_caution("/absent/path"), IoError);
}

}  // namespace
}  // namespace sluice::nvme
