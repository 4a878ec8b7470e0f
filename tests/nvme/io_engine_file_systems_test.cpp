// IoEngine on small file systems made for the test: full, in memory, with other sector sizes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint32_t kBlock = 256 * 1024;

class FileSystems : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override { SLUICE_SKIP_WITHOUT(GetParam().kind); }

  static std::unique_ptr<IoBackend> backend() {
    return make_backend(GetParam().kind, 16, 3).backend;
  }
  SwapFile open(const std::string& name) const {
    return SwapFile(dir_.file(name), OpenMode::create, GetParam().direct);
  }
  test::TempDir dir_;
};

TEST_P(FileSystems, AFullFileSystemIsReportedWithItsFreeBytes) {
  const ScopedMount tmpfs(dir_.path(), "tmpfs", "size=1m");
  if (!tmpfs.why_not().empty()) GTEST_SKIP() << tmpfs.why_not();
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  const auto bytes = random_bytes(2 * kMiB, 9);
  Ticket ticket = engine.begin_write(file, 0, bytes);
  try {
    ticket.finish();
    FAIL() << "2 MiB went into a file system of 1 MiB";
  } catch (const IoError& error) {
    EXPECT_EQ(error.code().value(), ENOSPC);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(file.path()), HasSubstr("the file system is full"),
                                    HasSubstr("are free")));
  }
  EXPECT_EQ(engine.counters().written_bytes, 0U);
}

// Logical blocks of 512 bytes and of 4 KiB; a disk that is full before the file ends.
TEST_P(FileSystems, ASmallExt4IsReadWrittenAndFilled) {
  for (const unsigned sector_bytes : {512U, 4096U}) {
    SCOPED_TRACE("sector of " + std::to_string(sector_bytes));
    const test::TempDir place;
    const ScopedExt4 ext4(place.path(), 16 * kMiB, sector_bytes);
    if (!ext4.why_not().empty()) GTEST_SKIP() << ext4.why_not();
    SwapFile file(ext4.file("f"), OpenMode::create, GetParam().direct);
    if (file.direct()) {
      EXPECT_EQ(file.offset_alignment(), sector_bytes);
    }
    IoEngine engine(backend(), {kBlock, 8});
    const auto bytes = random_bytes(kMiB + 13, 10);
    std::vector<std::byte> back(bytes.size());
    std::uint64_t longest = 0;
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{512}, std::uint64_t{77}}) {
      engine.begin_write(file, offset, bytes).finish();
      engine.begin_read(file, offset, back).finish();
      EXPECT_TRUE(same_bytes(back, bytes)) << offset;
      longest = std::max(longest, offset + bytes.size());
      EXPECT_EQ(file.size_bytes(), longest);
    }

    const std::uint64_t free_bytes = free_disk_bytes(file.path());
    const auto allocate_all = [&] { file.allocate(2 * kMiB + free_bytes); };
    EXPECT_THAT(message_of<IoError>(allocate_all),
                AllOf(HasSubstr("needed"), HasSubstr(format_bytes(free_bytes))));
    const auto too_much = random_bytes(free_bytes + 2 * kMiB, 11);
    EXPECT_THAT(message_of<IoError>([&] { engine.begin_write(file, kMiB, too_much).finish(); }),
                AllOf(HasSubstr(file.path()), HasSubstr("the file system is full")));
    engine.begin_read(file, 77, back).finish();
    EXPECT_TRUE(same_bytes(std::span(back).first(kMiB - 77), std::span(bytes).first(kMiB - 77)));
  }
}

TEST_P(FileSystems, ATmpfsIsReadAndWrittenWhetherOrNotItTakesDirectIo) {
  const ScopedMount tmpfs(dir_.path(), "tmpfs", "size=4m");
  if (!tmpfs.why_not().empty()) GTEST_SKIP() << tmpfs.why_not();
  const SwapFile file = open("f");
  IoEngine engine(backend(), {kBlock, 8});
  const auto bytes = random_bytes(kMiB + 13, 10);
  engine.begin_write(file, 77, bytes).finish();
  std::vector<std::byte> back(bytes.size());
  engine.begin_read(file, 77, back).finish();
  EXPECT_TRUE(same_bytes(back, bytes));
  EXPECT_EQ(file.size_bytes(), 77 + bytes.size());
}

INSTANTIATE_TEST_SUITE_P(Backends, FileSystems, ::testing::ValuesIn(backend_cases()),
                         [](const auto& param_info) { return name_of(param_info.param); });

}  // namespace
}  // namespace sluice::nvme
