// Registered memory and files: bytes are equal with and without registration, in every position,
// and every registration is removed.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

class RegistrationTest : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override { SLUICE_SKIP_WITHOUT(GetParam()); }

  IoEngine make_engine() const { return {make_backend(GetParam(), 8, 2).backend, {16384, 8}}; }
  // "first" was registered as `first_fd`, and got 16 KiB of random bytes of seed 1. A new file with
  // this number gets its own bytes.
  void expect_second_file_has_its_bytes(IoEngine& engine, TestBuffer& buffer, int first_fd) {
    SwapFile second(dir_.file("second"), OpenMode::create, DirectIo::automatic);
    ASSERT_EQ(second.fd(), first_fd);
    second.allocate(16 * kKiB);
    fill_random(buffer.bytes(), 2);
    engine.begin_write(second, 0, buffer.bytes()).finish();
    EXPECT_TRUE(same_bytes(read_whole_file(second.path()), random_bytes(16 * kKiB, 2)));
    EXPECT_TRUE(same_bytes(read_whole_file(dir_.file("first")), random_bytes(16 * kKiB, 1)));
  }

  test::TempDir dir_;
};

TEST_P(RegistrationTest, TransfersInsideAcrossAndOutsideOfIt) {
  IoEngine engine = make_engine();
  SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  file.allocate(kMiB);
  TestBuffer arena(256 * kKiB);
  const auto region = arena.bytes().subspan(64 * kKiB, 128 * kKiB);
  const Registration memory = engine.register_memory(region);
  const Registration registered_file = engine.register_file(file);
  if (GetParam() == BackendKind::io_uring && ::geteuid() == 0) {
    EXPECT_TRUE(memory.active()) << memory.why_not();
    EXPECT_TRUE(registered_file.active()) << registered_file.why_not();
  } else if (!memory.active()) {
    EXPECT_FALSE(memory.why_not().empty());
  }
  // Inside the region; across its first and last byte, in blocks of 16 KiB; outside; at an odd
  // address.
  const std::vector<std::pair<std::size_t, std::size_t>> places{
      {64, 128}, {80, 32}, {56, 32}, {176, 32}, {0, 48}, {200, 56}, {0, 256}};
  for (const auto& [at_kib, size_kib] : places) {
    for (const std::size_t shift : {0, 1}) {
      const auto bytes = arena.bytes().subspan(at_kib * kKiB + shift, size_kib * kKiB - shift);
      const auto wanted = random_bytes(bytes.size(), at_kib + shift);
      std::copy(wanted.begin(), wanted.end(), bytes.begin());
      engine.begin_write(file, 4096 * shift, bytes).finish();
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      engine.begin_read(file, 4096 * shift, bytes).finish();
      EXPECT_TRUE(same_bytes(bytes, wanted)) << at_kib << " KiB, shift " << shift;
    }
  }
}

TEST_P(RegistrationTest, SurvivesAssignmentToItself) {
  IoEngine engine = make_engine();
  TestBuffer buffer(64 * kKiB);
  Registration memory = engine.register_memory(buffer.bytes());
  const bool was_active = memory.active();
  Registration& itself = memory;
  memory = std::move(itself);
  EXPECT_EQ(memory.active(), was_active);
}

TEST_P(RegistrationTest, EndsWhenItsOwnerGoesAndCanBeMadeAgain) {
  IoEngine engine = make_engine();
  SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  file.allocate(kMiB);
  // More registrations than the tables have slots: each slot must have been freed.
  for (int i = 0; i < 300; ++i) {
    TestBuffer buffer(16 * kKiB);
    Registration memory = engine.register_memory(buffer.bytes());
    Registration of_file = engine.register_file(file);
    const auto wanted = random_bytes(16 * kKiB, static_cast<std::uint64_t>(i));
    std::copy(wanted.begin(), wanted.end(), buffer.bytes().begin());
    engine.begin_write(file, 0, buffer.bytes()).finish();
    Registration moved = std::move(memory);
    memory = std::move(moved);
    EXPECT_TRUE(memory.active() || !memory.why_not().empty()) << i;
    if (GetParam() == BackendKind::io_uring && ::geteuid() == 0) {
      ASSERT_TRUE(memory.active()) << i << ": " << memory.why_not();
      ASSERT_TRUE(of_file.active()) << i << ": " << of_file.why_not();
    }
  }
}

// One descriptor number for two files in turn: a stale registration would write to the first file.
TEST_P(RegistrationTest, ADescriptorThatIsUsedAgainIsTheNewFile) {
  IoEngine engine = make_engine();
  TestBuffer buffer(16 * kKiB);
  int first_fd = -1;
  {
    SwapFile first(dir_.file("first"), OpenMode::create, DirectIo::automatic);
    first.allocate(16 * kKiB);
    first_fd = first.fd();
    const Registration registered = engine.register_file(first);
    fill_random(buffer.bytes(), 1);
    engine.begin_write(first, 0, buffer.bytes()).finish();
  }
  expect_second_file_has_its_bytes(engine, buffer, first_fd);
}

// More registrations of one file than the table has slots.
TEST_P(RegistrationTest, OfOneFileTwiceTakesOneSlot) {
  IoEngine engine = make_engine();
  const auto expect_active = [](const Registration& registered) {
    if (GetParam() == BackendKind::io_uring && ::geteuid() == 0) {
      ASSERT_TRUE(registered.active()) << registered.why_not();
    }
  };
  TestBuffer buffer(16 * kKiB);
  int first_fd = -1;
  {
    const SwapFile first(dir_.file("first"), OpenMode::create, DirectIo::automatic);
    first_fd = first.fd();
    std::vector<Registration> all;
    for (int i = 0; i < 300; ++i) {
      all.push_back(engine.register_file(first));
      ASSERT_NO_FATAL_FAILURE(expect_active(all.back())) << i;
    }
    const SwapFile other(dir_.file("other"), OpenMode::create, DirectIo::automatic);
    ASSERT_NO_FATAL_FAILURE(expect_active(engine.register_file(other)));
    all.resize(1);
    fill_random(buffer.bytes(), 1);
    engine.begin_write(first, 0, buffer.bytes()).finish();
  }
  // The last registration has ended: its descriptor's number is free for another file.
  expect_second_file_has_its_bytes(engine, buffer, first_fd);
}

TEST_P(RegistrationTest, OfAFileThatWasMovedAwayIsAnError) {
  IoEngine engine = make_engine();
  SwapFile file(dir_.file("f"), OpenMode::create, DirectIo::automatic);
  const SwapFile moved = std::move(file);
  // NOLINTNEXTLINE(bugprone-use-after-move): the subject
  EXPECT_THROW(engine.register_file(file), InvalidArgument);
  EXPECT_NO_THROW(engine.register_file(moved));
}

INSTANTIATE_TEST_SUITE_P(AllBackends, RegistrationTest, ::testing::ValuesIn(built_backends()),
                         [](const auto& param) { return name_of(param.param); });

#if SLUICE_HAVE_URING
// Root may lock any amount of memory, so another user tries the limit.
TEST(Registration, WithTooLittleLockableMemoryGoesOnWithoutAndSaysWhy) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give it up";
  std::string why;
  if (!io_uring_available(why)) GTEST_SKIP() << why;
  const test::TempDir dir;
  std::filesystem::permissions(dir.path(), std::filesystem::perms::all);
  const std::string said = run_in_child([&]() -> std::string {
    test::limit_resource(RLIMIT_MEMLOCK, 64 * kKiB);
    test::become_another_user();
    IoEngine engine(make_backend(BackendKind::io_uring, 4, 1).backend, {4096, 4});
    SwapFile file(dir.file("f"), OpenMode::create, DirectIo::automatic);
    TestBuffer buffer(kMiB);
    fill_random(buffer.bytes(), 3);
    const Registration memory = engine.register_memory(buffer.bytes());
    if (memory.active()) return "the limit did not bite";
    engine.begin_write(file, 0, buffer.bytes()).finish();
    if (!same_bytes(read_whole_file(file.path()), buffer.bytes())) return "other bytes";
    return memory.why_not();
  });
  EXPECT_NE(said.find("RLIMIT_MEMLOCK"), std::string::npos) << said;
  EXPECT_NE(said.find("64.0 KiB"), std::string::npos) << said;
}
#endif

}  // namespace
}  // namespace sluice::nvme
