#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>

#include "in_child.hpp"
#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/extend_file.hpp"
#include "soft_limit.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SwapFileTest : public ::testing::Test {
 protected:
  static std::uint64_t allocated_bytes(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return static_cast<std::uint64_t>(info.st_blocks) * kBytesPerStatBlock;
  }
  static int error_number_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const IoError& error) {
      return error.code().value();
    }
    return 0;
  }
  test::TempDir dir_;
};

TEST_F(SwapFileTest, IsCreatedForItsOwnerOnly) {
  const SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  struct stat info {};
  ASSERT_EQ(::fstat(file.fd(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0600U);
  EXPECT_EQ(file.path(), dir_.file("f"));
  EXPECT_EQ(file.size_bytes(), 0U);
}

TEST_F(SwapFileTest, KeepsContentsWhenItExists) {
  const auto bytes = random_bytes(5000, 1);
  write_whole_file(dir_.file("f"), bytes);
  SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  EXPECT_EQ(file.size_bytes(), 5000U);
  file.allocate(100'000);
  const auto longer = read_whole_file(dir_.file("f"));
  ASSERT_EQ(longer.size(), 100'000U);
  EXPECT_TRUE(same_bytes(std::span(longer).first(5000), bytes));
  EXPECT_TRUE(same_bytes(std::span(longer).subspan(5000), std::vector<std::byte>(95'000)));
}

TEST_F(SwapFileTest, AllocateReservesEveryBlockAndSetsTheExactLength) {
  SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  file.allocate(kMiB + 1);
  EXPECT_EQ(file.size_bytes(), kMiB + 1);
  EXPECT_GE(allocated_bytes(file.path()), kMiB + 1);
  file.allocate(4096);
  EXPECT_EQ(file.size_bytes(), 4096U);
  file.allocate(0);
  EXPECT_EQ(file.size_bytes(), 0U);
  file.sync_data();
}

TEST_F(SwapFileTest, AlignmentIsOneWhenBuffered) {
  const SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::off);
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(file.offset_alignment(), 1U);
  EXPECT_EQ(file.memory_alignment(), 1U);
  EXPECT_THAT(file.why_buffered(), HasSubstr("switched off"));
}

TEST_F(SwapFileTest, DirectTransfersOfTheStatedAlignmentWork) {
  const SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  EXPECT_EQ(file.direct(), file.why_buffered().empty());
  const std::uint32_t size = file.offset_alignment();
  TestBuffer buffer(size, file.memory_alignment() % 4096);
  fill_random(buffer.bytes(), 2);
  ASSERT_EQ(::pwrite(file.fd(), buffer.bytes().data(), size, size), static_cast<ssize_t>(size));
  TestBuffer back(size);
  ASSERT_EQ(::pread(file.fd(), back.bytes().data(), size, size), static_cast<ssize_t>(size));
  EXPECT_TRUE(same_bytes(back.bytes(), buffer.bytes()));
}

TEST_F(SwapFileTest, WhatRefusesDirectIoIsOpenedBufferedOrNotAtAll) {
  // procfs has no direct I/O on any kernel.
  const std::string path = "/proc/self/comm";
  const SwapFile file(path, OpenMode::read_write, DirectIo::automatic);
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(file.offset_alignment(), 1U);
  EXPECT_THAT(file.why_buffered(), HasSubstr("O_DIRECT"));
  EXPECT_THAT(message_of<IoError>([&] { SwapFile(path, OpenMode::read_write, DirectIo::on); }),
              AllOf(HasSubstr(path), HasSubstr("O_DIRECT"), HasSubstr("auto")));
}

// As mergerfs and unionfs-fuse do: open() takes O_DIRECT, and the kernel does not know better.
TEST_F(SwapFileTest, WhatTakesDirectIoAtOpenAndRefusesTransfersIsOpenedBuffered) {
  if (!SwapFile(dir_.file("f"), OpenMode::create, DirectIo::automatic).direct())
    GTEST_SKIP() << "the file system of the tests has no direct I/O";
  const auto bytes = random_bytes(8192, 5);
  for (const long call : {__NR_pwrite64, __NR_pread64}) {
    const std::string name = call == __NR_pwrite64 ? "pwrite" : "pread";
    for (const OpenMode mode : {OpenMode::create, OpenMode::read_write, OpenMode::read_only}) {
      if (call == __NR_pwrite64 && mode == OpenMode::read_only) continue;  // nobody writes
      SCOPED_TRACE(name + " " + std::to_string(static_cast<int>(mode)));
      const std::string path = dir_.file("f");
      if (mode == OpenMode::create) {
        std::filesystem::remove(path);
      } else {
        write_whole_file(path, bytes);
      }
      const std::string said = run_in_child([&]() -> std::string {
        deny(__NR_statx, ENOSYS);
        const bool direct = SwapFile(path, mode, DirectIo::automatic).direct();
        deny(call, EINVAL);
        const SwapFile file(path, mode, DirectIo::automatic);
        const bool buffered = !file.direct() && (::fcntl(file.fd(), F_GETFL) & O_DIRECT) == 0;
        return std::string(direct ? "direct, " : "not direct, ") + (buffered ? "buffered: " : "") +
               file.why_buffered() + "; " +
               message_of<IoError>([&] { SwapFile(path, mode, DirectIo::on); });
      });
      EXPECT_THAT(
          said, AllOf(::testing::StartsWith("direct, buffered: the file system refuses O_DIRECT (" +
                                            name + ": EINVAL); "),
                      HasSubstr("open for direct I/O"), HasSubstr("auto")));
      if (mode != OpenMode::create) {
        EXPECT_TRUE(same_bytes(read_whole_file(path), bytes));
      }
      const auto entries = std::filesystem::directory_iterator(dir_.path());
      EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "the trial's file stays";
    }
  }
}

// A transfer says what is wrong with the drive, and where.
TEST_F(SwapFileTest, ATrialOfDirectIoThatFailsOtherwiseIsLeftToTheTransfers) {
  const std::string said = run_in_child([&]() -> std::string {
    deny(__NR_statx, ENOSYS);
    deny(__NR_pwrite64, EIO);
    deny(__NR_pread64, EIO);
    return SwapFile(dir_.file("f"), OpenMode::create, DirectIo::automatic).why_buffered();
  });
  EXPECT_EQ(said, "");
}

TEST_F(SwapFileTest, AnAbsentDirectoryIsNamedWithWhatToDo) {
  const std::string path = dir_.file("absent/f");
  const auto open = [&] { SwapFile(path, OpenMode::create, DirectIo::automatic); };
  EXPECT_THAT(message_of<IoError>(open), AllOf(HasSubstr(path), HasSubstr("create it first")));
  EXPECT_EQ(error_number_of(open), ENOENT);
}

TEST_F(SwapFileTest, AnAbsentFileIsNotCreatedByTheOtherModes) {
  for (const OpenMode mode : {OpenMode::read_only, OpenMode::read_write}) {
    EXPECT_EQ(error_number_of([&] { SwapFile(dir_.file("f"), mode, DirectIo::automatic); }),
              ENOENT);
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.file("f")));
}

TEST_F(SwapFileTest, ADirectoryIsNotAFile) {
  EXPECT_EQ(error_number_of([&] { SwapFile(dir_.path(), OpenMode::create, DirectIo::off); }),
            EISDIR);
  for (const OpenMode mode : {OpenMode::read_only, OpenMode::read_write, OpenMode::create}) {
    EXPECT_THAT(message_of<IoError>([&] { SwapFile(dir_.path(), mode, DirectIo::automatic); }),
                AllOf(HasSubstr(dir_.path()), HasSubstr("name a file")));
  }
}

TEST_F(SwapFileTest, ADeviceIsRefusedWithoutTheAdviceToRemoveIt) {
  EXPECT_THAT(
      message_of<IoError>([] { SwapFile("/dev/null", OpenMode::create, DirectIo::automatic); }),
      AllOf(HasSubstr("not a regular file; name a file"), Not(HasSubstr("remove"))));
}

TEST_F(SwapFileTest, AFifoIsRefusedAndNotWaitedFor) {
  const std::string fifo = dir_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const OpenMode mode : {OpenMode::read_only, OpenMode::read_write, OpenMode::create}) {
    EXPECT_THAT(message_of<IoError>([&] { SwapFile(fifo, mode, DirectIo::automatic); }),
                AllOf(HasSubstr(fifo), HasSubstr("not a regular file")));
  }
}

// io_uring fails a request that would wait with EAGAIN on an O_NONBLOCK descriptor.
TEST_F(SwapFileTest, TheDescriptorIsABlockingOne) {
  for (const DirectIo direct : {DirectIo::automatic, DirectIo::off}) {
    const SwapFile file(dir_.file("f"), OpenMode::create, direct);
    const int flags = ::fcntl(file.fd(), F_GETFL);
    EXPECT_EQ(flags & O_NONBLOCK, 0);
    EXPECT_EQ((flags & O_DIRECT) != 0, file.direct());
  }
}

TEST_F(SwapFileTest, AReadOnlyDirectoryIsAnErrorForWhoeverIsNotRoot) {
  // Below the system's temporary folder, which every user may access.
  std::string place = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
  ASSERT_NE(::mkdtemp(place.data()), nullptr);
  constexpr uid_t kNobody = 65534;
  for (const char* name : {"/open", "/closed"}) {
    ASSERT_EQ(::mkdir((place + name).c_str(), 0700), 0);
    if (::geteuid() == 0) {
      ASSERT_EQ(::chown((place + name).c_str(), kNobody, kNobody), 0);
    }
  }
  ASSERT_EQ(::chmod(place.c_str(), 0755), 0);
  ASSERT_EQ(::chmod((place + "/closed").c_str(), 0555), 0);
  const std::string said = run_in_child([&]() -> std::string {
    if (::geteuid() == 0) {
      SLUICE_SYSCALL(::setgroups(0, nullptr), "setgroups");
      SLUICE_SYSCALL(::setgid(kNobody), "setgid");
      SLUICE_SYSCALL(::setuid(kNobody), "setuid");
    }
    const SwapFile open(place + "/open/f", OpenMode::create,
                        DirectIo::automatic);  // no other limit
    try {
      const SwapFile closed(place + "/closed/f", OpenMode::create, DirectIo::automatic);
    } catch (const IoError& error) {
      return std::to_string(error.code().value()) + " " + error.what();
    }
    return "no error";
  });
  std::filesystem::remove_all(place);
  EXPECT_THAT(said, AllOf(::testing::StartsWith(std::to_string(EACCES) + " "),
                          HasSubstr(place + "/closed/f"), HasSubstr("no permission")));
}

TEST_F(SwapFileTest, AFullDiskIsFoundByAllocateWithNeededAndFreeBytes) {
  const ScopedMount tmpfs(dir_.path(), "tmpfs", "size=1m");
  if (!tmpfs.why_not().empty()) GTEST_SKIP() << tmpfs.why_not();
  SwapFile file(tmpfs.file("f"), OpenMode::create, DirectIo::automatic);
  file.allocate(512 * kKiB);
  const auto too_much = [&] { file.allocate(2 * kMiB); };
  EXPECT_THAT(message_of<IoError>(too_much),
              AllOf(HasSubstr(file.path()), HasSubstr("needed 2.00 MiB"), HasSubstr("had 512 KiB"),
                    HasSubstr("; 512 KiB are free;"), HasSubstr("No space left on device")));
  EXPECT_EQ(error_number_of(too_much), ENOSPC);
  EXPECT_EQ(file.size_bytes(), 512 * kKiB);
  EXPECT_EQ(free_disk_bytes(tmpfs.file("f")), 512 * kKiB);
}

// A quota of a server, say.
TEST_F(SwapFileTest, NoSpaceWhereBytesAreFreeIsNotSaidToBeTooFewBytes) {
  const std::string said = sluice::test::run_in_child([&]() -> std::string {
    SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
    sluice::test::deny(__NR_fallocate, ENOSPC);
    file.allocate(8 * kKiB);
    return "no error";
  });
  EXPECT_THAT(said, AllOf(HasSubstr("which is enough: a quota"), HasSubstr("thin device"),
                          Not(HasSubstr("free some"))));
}

// As many files as the file system can hold: it has bytes, and no inode.
TEST_F(SwapFileTest, AFileSystemWithoutInodesIsNamed) {
  const ScopedMount tmpfs(dir_.path(), "tmpfs", "size=1m,nr_inodes=2");
  if (!tmpfs.why_not().empty()) GTEST_SKIP() << tmpfs.why_not();
  const SwapFile first(tmpfs.file("f"), OpenMode::create, DirectIo::automatic);
  EXPECT_THAT(message_of<IoError>([&] {
                const SwapFile second(tmpfs.file("g"), OpenMode::create, DirectIo::automatic);
              }),
              AllOf(HasSubstr(tmpfs.file("g")), HasSubstr("open"), HasSubstr("no free inodes")));
}

TEST_F(SwapFileTest, AllocateWritesBlocksWhereThereIsNoFallocate) {
  const ScopedMount ramfs(dir_.path(), "ramfs", "");
  if (!ramfs.why_not().empty()) GTEST_SKIP() << ramfs.why_not();
  const auto bytes = random_bytes(5000, 3);
  write_whole_file(ramfs.file("f"), bytes);
  SwapFile file(ramfs.file("f"), OpenMode::read_write, DirectIo::automatic);
  ASSERT_EQ(::fallocate(file.fd(), 0, 0, 4096), -1);  // otherwise this test is void
  file.allocate(64 * kKiB + 5);
  const auto longer = read_whole_file(ramfs.file("f"));
  ASSERT_EQ(longer.size(), 64 * kKiB + 5);
  EXPECT_TRUE(same_bytes(std::span(longer).first(5000), bytes));
  EXPECT_GE(allocated_bytes(file.path()), 64 * kKiB + 5);
}

TEST_F(SwapFileTest, AllocateWritesBlocksWhereTheSystemHasNoFallocate) {
  const auto bytes = random_bytes(5000, 4);
  write_whole_file(dir_.file("f"), bytes);
  const std::string said = run_in_child([&]() -> std::string {
    deny(__NR_fallocate, ENOSYS);
    SwapFile file(dir_.file("f"), OpenMode::read_write, DirectIo::automatic);
    file.allocate(64 * kKiB + 5);
    return "allocated";
  });
  EXPECT_EQ(said, "allocated");
  const auto longer = read_whole_file(dir_.file("f"));
  ASSERT_EQ(longer.size(), 64 * kKiB + 5);
  EXPECT_TRUE(same_bytes(std::span(longer).first(5000), bytes));
  EXPECT_GE(allocated_bytes(dir_.file("f")), 64 * kKiB + 5);
}

TEST_F(SwapFileTest, ExtendingNeverShortens) {
  SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  extend_file(file, 4 * kKiB, 8 * kKiB + 5);
  EXPECT_EQ(file.size_bytes(), 8 * kKiB + 5);
  EXPECT_GE(allocated_bytes(file.path()), 8 * kKiB + 5);
  extend_file(file, 0, 4 * kKiB);
  EXPECT_EQ(file.size_bytes(), 8 * kKiB + 5);
}

// Zeros over another owner's bytes would lose them.
TEST_F(SwapFileTest, ExtendingWithoutFallocateWritesIntoItsOwnRangeOnly) {
  const std::string said = run_in_child([&]() -> std::string {
    deny(__NR_fallocate, ENOSYS);
    const SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
    extend_file(file, 60 * kKiB, 64 * kKiB + 5);
    return "extended";
  });
  EXPECT_EQ(said, "extended");
  EXPECT_EQ(std::filesystem::file_size(dir_.file("f")), 64 * kKiB + 5);
  EXPECT_GE(allocated_bytes(dir_.file("f")), 4 * kKiB + 5);
  EXPECT_LT(allocated_bytes(dir_.file("f")), 60 * kKiB);
}

TEST_F(SwapFileTest, AFullDiskIsFoundByExtendingWithNeededAndFreeBytes) {
  const ScopedMount tmpfs(dir_.path(), "tmpfs", "size=1m");
  if (!tmpfs.why_not().empty()) GTEST_SKIP() << tmpfs.why_not();
  const SwapFile file(tmpfs.file("f"), OpenMode::create, DirectIo::automatic);
  EXPECT_THAT(message_of<IoError>([&] { extend_file(file, 0, 2 * kMiB); }),
              AllOf(HasSubstr(file.path()), HasSubstr("needed 2.00 MiB"),
                    HasSubstr("; 1.00 MiB are free;")));
}

TEST_F(SwapFileTest, FreeBytesOfAnAbsentPathAreAnError) {
  EXPECT_EQ(error_number_of([&] { free_disk_bytes(dir_.file("absent")); }), ENOENT);
}

// As a ring of io_uring may, for a moment after its process has ended, or a forked child.
TEST(OpenLocked, IsFreeWhenItsOwnerEndsWhoeverElseHasTheFileOpen) {
  const test::TempDir dir;
  const std::string path = dir.file("locked");
  std::optional<SwapFile> owner = SwapFile::open_locked(path, DirectIo::automatic);
  ASSERT_TRUE(owner.has_value());
  const UniqueFd same_file(::dup(owner->fd()));
  EXPECT_FALSE(SwapFile::open_locked(path, DirectIo::automatic).has_value());
  owner.reset();
  EXPECT_TRUE(SwapFile::open_locked(path, DirectIo::automatic).has_value());
}

// As `sluice nvme clean` looks whether a file is in use.
TEST(OpenLocked, IsNotRefusedByWhoLooksForAMoment) {
  const test::TempDir dir;
  const std::string path = dir.file("locked");
  write_whole_file(path, random_bytes(1, 1));
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::atomic<bool> ends = false;
  std::thread looks([&] {
    while (!ends) {
      ::flock(fd.get(), LOCK_SH | LOCK_NB);
      ::flock(fd.get(), LOCK_UN);
    }
  });
  int refused = 0;
  for (int i = 0; i < 1000; ++i)
    if (!SwapFile::open_locked(path, DirectIo::automatic)) ++refused;
  ends = true;
  looks.join();
  EXPECT_EQ(refused, 0);
}

TEST_F(SwapFileTest, OpenedLockedLeavesNoFileWhereADescriptorIsMissing) {
  const std::string path = dir_.file("locked");
  const auto open_it = [&] { (void)SwapFile::open_locked(path, DirectIo::automatic); };
  open_it();
  const auto free = static_cast<rlim_t>(UniqueFd(::dup(STDIN_FILENO)).get());
  for (rlim_t room = 0; room < 2; ++room) {
    std::filesystem::remove(path);
    const test::SoftLimit few(RLIMIT_NOFILE, free + room);
    EXPECT_EQ(error_number_of(open_it), EMFILE);
    EXPECT_FALSE(std::filesystem::exists(path)) << room;
  }
}

}  // namespace
}  // namespace sluice::nvme
