// Files that need not survive the run.

#include <gmock/gmock.h>

#include <filesystem>

#include "sluice/offload/scratch_file.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

using ::testing::HasSubstr;

TEST(ScratchFile, IsAllocatedUpFrontAndRemovedAtTheEnd) {
  const TempDir dir;
  std::string path;
  {
    const ScratchFile scratch(dir.path(), "gradients", 10'000, nvme::DirectIo::automatic);
    path = scratch.path();
    EXPECT_EQ(path, dir.file("scratch.gradients.swap"));
    EXPECT_EQ(std::filesystem::file_size(path), 3U * 4096U);
    EXPECT_EQ(SwapStore::list_files(dir.path()), std::vector<std::string>{path});
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ScratchFile, GivesRangesThatDoNotTouch) {
  const TempDir dir;
  const auto engine = make_engine();
  ScratchFile scratch(dir.path(), "inputs", std::uint64_t{5} * 4096, nvme::DirectIo::automatic);
  const FileRange first = scratch.take(5000);
  const FileRange second = scratch.take(1);
  const FileRange third = scratch.take(std::uint64_t{2} * 4096);
  EXPECT_EQ(first.file, &scratch.file());
  EXPECT_EQ(first.offset_bytes, 0U);
  EXPECT_EQ(second.offset_bytes, 2U * 4096U);
  EXPECT_EQ(third.offset_bytes, 3U * 4096U);
  EXPECT_EQ(third.size_bytes, 2U * 4096U);

  std::vector<Ticket> tickets;
  std::vector<std::vector<std::byte>> written;
  for (const FileRange& range : {first, second, third}) {
    written.push_back(nvme::random_bytes(range.size_bytes, range.offset_bytes));
  }
  std::size_t at = 0;
  for (const FileRange& range : {first, second, third}) {
    tickets.push_back(engine->begin_write(*range.file, range.offset_bytes, written[at++]));
  }
  finish_all(tickets);
  at = 0;
  for (const FileRange& range : {first, second, third}) {
    std::vector<std::byte> read(range.size_bytes);
    engine->begin_read(*range.file, range.offset_bytes, read).finish();
    EXPECT_TRUE(same_bytes(read, written[at++]));
  }
}

TEST(ScratchFile, RefusesMoreThanItHas) {
  const TempDir dir;
  ScratchFile scratch(dir.path(), "inputs", 10'000, nvme::DirectIo::automatic);
  EXPECT_THAT(message_of<InvalidArgument>([&] { scratch.take(10'001); }), HasSubstr("10001"));
  EXPECT_THROW(scratch.take(~0ULL), InvalidArgument);
  EXPECT_EQ(scratch.take(5000).offset_bytes, 0U);
  EXPECT_EQ(scratch.take(1808).offset_bytes, 8192U);
  EXPECT_THAT(message_of<InvalidArgument>([&] { scratch.take(1); }), HasSubstr("0 of 10000"));
}

TEST(ScratchFile, RefusesNamesAndSizesThatCannotBe) {
  const TempDir dir;
  const auto make = [&](const std::string& name, std::uint64_t size_bytes) {
    ScratchFile(dir.path(), name, size_bytes, nvme::DirectIo::automatic);
  };
  EXPECT_THROW(make("", 1), InvalidArgument);
  EXPECT_THROW(make("../escape", 1), InvalidArgument);
  EXPECT_THROW(make("empty", 0), InvalidArgument);
  EXPECT_THROW(make("huge", ~0ULL), InvalidArgument);
  EXPECT_TRUE(SwapStore::list_files(dir.path()).empty());
}

TEST(ScratchFile, RefusesAFileThatIsInUseAndTakesOverADeadOne) {
  const TempDir dir;
  write_text(dir.file("scratch.gradients.swap"), std::string(50'000, 'x'));
  const ScratchFile scratch(dir.path(), "gradients", 10'000, nvme::DirectIo::automatic);
  EXPECT_EQ(std::filesystem::file_size(scratch.path()), 3U * 4096U);
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { ScratchFile(dir.path(), "gradients", 1, nvme::DirectIo::automatic); }),
              HasSubstr("in use already"));
  EXPECT_TRUE(std::filesystem::exists(scratch.path()));
}

TEST(ScratchFile, LeavesNothingWhenTheDiskIsFull) {
  const TempDir dir;
  const nvme::ScopedMount mount(dir.path(), "tmpfs", "size=1m");
  if (!mount.why_not().empty()) GTEST_SKIP() << mount.why_not();
  const std::string said = message_of<IoError>(
      [&] { ScratchFile(dir.path(), "gradients", 1U << 22U, nvme::DirectIo::automatic); });
  EXPECT_THAT(said, ::testing::AllOf(HasSubstr("4.00 MiB"), HasSubstr("1.00 MiB")));
  EXPECT_TRUE(SwapStore::list_files(dir.path()).empty());
}

}  // namespace
}  // namespace sluice::offload::test
