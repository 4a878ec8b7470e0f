// Checking and clearing a directory in which no run is at work.

#include "sluice/offload/swap_directory.hpp"

#include <gmock/gmock.h>
#include <sys/mount.h>

#include <filesystem>

#include "captured_log.hpp"
#include "nvme/faulty_backend.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_state.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

namespace fs = std::filesystem;

using sluice::test::CapturedLog;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kSomeBytes = 4 * kChecksumChunkBytes + 123 + 100 + 1;  // of some_shards()
constexpr std::uint64_t kNormOffset = 3 * kChecksumChunkBytes + 4096;  // where the second one lies

class SwapDirectoryTest : public SwapStoreTest {
 protected:
  VerifyReport check(const VerifyProgress& progress = nullptr) { return check(*engine_, progress); }
  VerifyReport check(nvme::IoEngine& engine, const VerifyProgress& progress = nullptr) {
    VerifyReport report;
    check_into(report, engine, progress);
    return report;
  }
  void check_into(VerifyReport& report, nvme::IoEngine& engine,
                  const VerifyProgress& progress = nullptr) {
    MemoryPool staging(Tier::host, 4 * kChecksumChunkBytes, make_host_source());
    verify_directory(dir_.path(), engine, staging, progress, report);
  }
  // Checks with an engine whose third request fails with `error_number`.
  VerifyReport check_with_failure(int error_number) {
    auto backend = std::make_unique<nvme::FaultyBackend>(
        nvme::make_backend(nvme::BackendKind::threads, kSmallBlocks.depth, 2).backend,
        nvme::FaultyOptions{[error_number](const nvme::IoRequest&, std::uint64_t index) {
          return index == 2 ? nvme::Fault::with(-error_number) : nvme::Fault{};
        }});
    nvme::IoEngine engine(std::move(backend), kSmallBlocks);
    return check(engine);
  }
  void leave_everything_a_dead_run_leaves() {
    write_text(dir_.file("scratch.spill.swap"), std::string(10'000, 'x'));
    write_text(dir_.file("manifest.json.tmp"), "{\"form");
    write_text(dir_.file(std::string(nvme::kBenchFileName)), std::string(5'000, 'x'));
  }
};

TEST_F(SwapDirectoryTest, ARanksFolderMayBeALinkWhichStays) {
  const sluice::test::TempDir elsewhere;
  write_text(elsewhere.file("states.0.swap"), std::string(10'000, 'x'));
  fs::create_directory_symlink(elsewhere.path(), dir_.file("rank-0-of-2"));
  EXPECT_TRUE(holds_state_files(dir_.path()));
  EXPECT_THAT(clean(CleanScope::everything), ElementsAre("states.0.swap"));
  EXPECT_FALSE(fs::exists(elsewhere.file("states.0.swap")));
  EXPECT_TRUE(fs::is_symlink(dir_.file("rank-0-of-2")));
}

TEST_F(SwapDirectoryTest, ARanksFolderMayBeAMountPointWhichStays) {
  const std::string folder = dir_.file("rank-0-of-2");
  const sluice::test::TempDir elsewhere;
  for (const bool of_another_system : {true, false}) {
    fs::create_directories(folder);
    const int failed = of_another_system ? ::mount("none", folder.c_str(), "tmpfs", 0, nullptr)
                                         : ::mount(elsewhere.path().c_str(), folder.c_str(),
                                                   nullptr, MS_BIND, nullptr);
    if (failed != 0) GTEST_SKIP() << "mounting is not permitted here";
    write_text(folder + "/states.0.swap", std::string(10'000, 'x'));
    EXPECT_NO_THROW(clean(CleanScope::everything));
    const bool is_removed = !fs::exists(folder + "/states.0.swap");
    EXPECT_EQ(::umount(folder.c_str()), 0);
    EXPECT_TRUE(is_removed);
  }
}

TEST_F(SwapDirectoryTest, FindsAWholeDirectoryWhole) {
  commit_first(8);
  std::vector<std::uint64_t> done;
  const VerifyReport report = check([&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    done.push_back(done_bytes);
    EXPECT_EQ(total_bytes, kSomeBytes);
  });
  EXPECT_EQ(report.step, 8);
  EXPECT_EQ(report.shard_count, 4U);
  EXPECT_EQ(report.checked_bytes, kSomeBytes);
  EXPECT_TRUE(report.damaged.empty());
  EXPECT_EQ(done.size(), 7U) << "once for every chunk";
  EXPECT_EQ(done.back(), kSomeBytes);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
}

TEST_F(SwapDirectoryTest, NamesAFlippedBitAndChecksTheRest) {
  commit_first(8);
  flip_bit(dir_.file("states.0.swap"), kChecksumChunkBytes + 7, 2);
  flip_bit(dir_.file("states.0.swap"), kNormOffset + 99, 0);
  const VerifyReport report = check();
  ASSERT_EQ(report.damaged.size(), 2U);
  EXPECT_EQ(report.checked_bytes, kSomeBytes);
  EXPECT_EQ(report.damaged[0].path, dir_.file("states.0.swap"));
  EXPECT_EQ(report.damaged[0].shard, "blocks.0.attention");
  EXPECT_EQ(report.damaged[0].offset_bytes, kChecksumChunkBytes);
  EXPECT_EQ(report.damaged[0].size_bytes, kChecksumChunkBytes);
  EXPECT_EQ(report.damaged[1].shard, "blocks.0.norm");
  EXPECT_EQ(report.damaged[1].size_bytes, 100U);
  EXPECT_EQ(report.damaged[1].file_offset_bytes, kNormOffset);
}

TEST_F(SwapDirectoryTest, NamesWhatLiesBehindTheEndOfAFile) {
  commit_first(8);
  const std::uint64_t end_bytes = 2 * kChecksumChunkBytes + 5;
  fs::resize_file(dir_.file("states.0.swap"), end_bytes);
  flip_bit(dir_.file("states.0.swap"), 3, 3);
  const VerifyReport report = check();
  ASSERT_EQ(report.damaged.size(), 5U);
  EXPECT_EQ(report.checked_bytes, 2 * kChecksumChunkBytes);
  EXPECT_EQ(report.damaged[0].why, "differs from its checksum");
  EXPECT_EQ(report.damaged[1].shard, "blocks.0.attention");
  EXPECT_EQ(report.damaged[1].offset_bytes, 2 * kChecksumChunkBytes);
  EXPECT_EQ(report.damaged[1].size_bytes, kChecksumChunkBytes + 123);
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(report.damaged[i].why, "the file ends at byte " + std::to_string(end_bytes));
  }
  EXPECT_EQ(report.damaged[4].shard, "scale");
}

TEST_F(SwapDirectoryTest, NamesEveryShardOfAnAbsentFile) {
  commit_first(8);
  fs::remove(dir_.file("states.0.swap"));
  const VerifyReport report = check();
  EXPECT_EQ(report.checked_bytes, 0U);
  ASSERT_EQ(report.damaged.size(), 4U);
  for (const DamagedRange& range : report.damaged) {
    EXPECT_EQ(range.path, dir_.file("states.0.swap"));
    EXPECT_EQ(range.offset_bytes, 0U);
    EXPECT_EQ(range.why, "the file is absent");
  }
}

TEST_F(SwapDirectoryTest, CallsDamagedWhatTheDriveCannotGiveBack) {
  commit_first(8);
  for (const int error_number : {EIO, ENODATA, EILSEQ, EBADMSG, EUCLEAN}) {
    const VerifyReport report = check_with_failure(error_number);
    ASSERT_EQ(report.damaged.size(), 1U) << error_number;
    EXPECT_EQ(report.damaged[0].shard, "blocks.0.attention");
    EXPECT_THAT(report.damaged[0].why, HasSubstr("cannot be read: "));
  }
}

// A whole state that is called damaged may be removed.
TEST_F(SwapDirectoryTest, AReadThatFailsForAnotherReasonIsNoDamage) {
  commit_first(8);
  for (const int error_number : {EINVAL, ENOMEM, EMFILE, EACCES, ENOTCONN}) {
    try {
      check_with_failure(error_number);
      ADD_FAILURE() << "no error " << error_number;
    } catch (const IoError& error) {
      EXPECT_EQ(error.code().value(), error_number);
      EXPECT_THAT(error.what(), HasSubstr(dir_.file("states.0.swap")));
    }
  }
}

TEST_F(SwapDirectoryTest, ReportsTheDamageThatItFoundBeforeAnError) {
  commit_first(8);
  fs::resize_file(dir_.file("states.0.swap"), kNormOffset);  // cuts off the last three shards
  flip_bit(dir_.file("states.0.swap"), 3, 3);
  const auto fail_in_second_chunk = [](std::uint64_t done_bytes, std::uint64_t) {
    if (done_bytes > kChecksumChunkBytes) throw IoError(ENOMEM, "read", "states.0.swap");
  };
  VerifyReport report;
  EXPECT_THROW(check_into(report, *engine_, fail_in_second_chunk), IoError);
  EXPECT_EQ(report.step, 8);
  ASSERT_EQ(report.damaged.size(), 4U);
  EXPECT_EQ(report.damaged[0].shard, "blocks.0.attention");
  EXPECT_EQ(report.damaged[0].offset_bytes, 0U);
  EXPECT_EQ(report.damaged[1].shard, "blocks.0.norm");
  EXPECT_EQ(report.damaged[3].shard, "scale");
}

TEST_F(SwapDirectoryTest, ReadsOnlyTheSlotsThatAreCommitted) {
  commit_first(8);
  fs::remove(dir_.file("states.1.swap"));
  EXPECT_TRUE(check().damaged.empty());
  {
    const auto store = open();  // makes it anew
    update_shard(*store, 1, 9);
    store->commit(9, "{}");
  }
  EXPECT_TRUE(check().damaged.empty());
  flip_bit(dir_.file("states.0.swap"), kNormOffset, 0);  // stale now
  EXPECT_TRUE(check().damaged.empty());
  flip_bit(dir_.file("states.1.swap"), kNormOffset, 0);
  EXPECT_EQ(check().damaged.size(), 1U);
}

TEST_F(SwapDirectoryTest, ChangesNothingWhileItChecks) {
  commit_first(8);
  leave_everything_a_dead_run_leaves();
  const std::vector<std::string> before = names_there();
  const fs::file_time_type written = fs::last_write_time(dir_.file("lock"));
  check();
  EXPECT_EQ(names_there(), before);
  EXPECT_EQ(fs::last_write_time(dir_.file("lock")), written);
}

TEST_F(SwapDirectoryTest, StopsWhereTheProgressThrows) {
  commit_first(8);
  EXPECT_THROW(check([](std::uint64_t, std::uint64_t) { throw Interrupted(2); }), Interrupted);
}

TEST_F(SwapDirectoryTest, RefusesToCheckWhatIsNotCommittedOrInUse) {
  EXPECT_THAT(message_of<StorageError>([&] { check(); }), HasSubstr("holds no committed run"));
  const auto store = create();
  EXPECT_THAT(message_of<StorageError>([&] { check(); }),
              HasSubstr("(process " + std::to_string(::getpid()) + ")"));
}

TEST_F(SwapDirectoryTest, ClearsLeftoversAndKeepsWhatIsCommittedBitForBit) {
  commit_first(8);
  leave_everything_a_dead_run_leaves();
  write_text(dir_.file("notes.txt"), "not of the store");
  const std::string states = read_text(dir_.file("states.0.swap"));
  const std::string manifest = read_text(dir_.file("manifest.json"));
  EXPECT_THAT(clean(CleanScope::leftovers), ElementsAre("manifest.json.tmp", "scratch.spill.swap",
                                                        "states.1.swap", "bench.sluice"));
  EXPECT_EQ(report_.committed_step, 8);
  EXPECT_EQ(report_.files[1].size_bytes, 10'000U);
  EXPECT_GE(report_.files[1].disk_bytes, 10'000U);
  EXPECT_THAT(names_there(), ElementsAre("lock", "manifest.json", "notes.txt", "states.0.swap"));
  EXPECT_TRUE(states == read_text(dir_.file("states.0.swap")));
  EXPECT_EQ(manifest, read_text(dir_.file("manifest.json")));
  EXPECT_TRUE(check().damaged.empty());
  EXPECT_EQ(difference_from(*open(), 8), "");
}

TEST_F(SwapDirectoryTest, KeepsBothSlotsWhereBothHoldCommittedShards) {
  commit_first(8);
  {
    const auto store = open();
    update_shard(*store, 1, 9);
    store->commit(9, "{}");
  }
  EXPECT_TRUE(clean(CleanScope::leftovers).empty());
  EXPECT_TRUE(check().damaged.empty());
}

TEST_F(SwapDirectoryTest, ListsWithoutRemoving) {
  commit_first(8);
  leave_everything_a_dead_run_leaves();
  const std::vector<std::string> before = names_there();
  const std::vector<std::string> listed = clean(CleanScope::everything, CleanMode::list);
  EXPECT_EQ(names_there(), before);
  EXPECT_EQ(listed, clean(CleanScope::everything));
}

TEST_F(SwapDirectoryTest, RemovesAWholeRunTheManifestFirstAndTheLockLast) {
  commit_first(8);
  leave_everything_a_dead_run_leaves();
  write_text(dir_.file("notes.txt"), "not of the store");
  EXPECT_THAT(clean(CleanScope::everything),
              ElementsAre("manifest.json", "manifest.json.tmp", "scratch.spill.swap",
                          "states.0.swap", "states.1.swap", "bench.sluice", "lock"));
  EXPECT_EQ(report_.committed_step, 8);
  EXPECT_THAT(names_there(), ElementsAre("notes.txt"));
  EXPECT_TRUE(clean(CleanScope::everything).empty());
  commit_first(1);
}

TEST_F(SwapDirectoryTest, LeavesNoLockWhereThereWasNone) {
  write_text(dir_.file("notes.txt"), "not of a store");
  EXPECT_TRUE(clean(CleanScope::leftovers).empty());
  EXPECT_THAT(names_there(), ElementsAre("notes.txt"));
  leave_everything_a_dead_run_leaves();
  for (const CleanScope scope : {CleanScope::leftovers, CleanScope::everything}) {
    leave_everything_a_dead_run_leaves();
    EXPECT_THAT(clean(scope),
                ElementsAre("manifest.json.tmp", "scratch.spill.swap", "bench.sluice"));
    EXPECT_THAT(names_there(), ElementsAre("notes.txt"));
  }
}

TEST_F(SwapDirectoryTest, LeavesAloneWhatIsNoRegularFile) {
  write_text(dir_.file("data"), "precious");
  fs::create_directory(dir_.file("scratch.a.swap"));
  fs::create_symlink("data", dir_.file("scratch.b.swap"));
  fs::create_symlink("data", dir_.file("bench.sluice"));
  const std::vector<std::string> before = names_there();
  EXPECT_TRUE(clean(CleanScope::everything).empty());
  EXPECT_EQ(names_there(), before);
}

TEST_F(SwapDirectoryTest, LeavesAManifestOfSomethingElseAndAllBesideIt) {
  write_text(dir_.file("manifest.json"), "{\"name\": \"an application\"}");
  leave_everything_a_dead_run_leaves();
  const std::vector<std::string> before = names_there();
  EXPECT_THROW(clean(CleanScope::leftovers), StorageError);
  EXPECT_THAT(message_of<StorageError>([&] { clean(CleanScope::everything); }),
              AllOf(HasSubstr(dir_.file("manifest.json")), HasSubstr("is not the manifest")));
  EXPECT_EQ(names_there(), before);
}

TEST_F(SwapDirectoryTest, RemovesADamagedRunOnlyAsAWhole) {
  for (const std::string damaged : {"", "{\"format\": \"sluice-swap-store\", \"ver"}) {
    commit_first(8);
    write_text(dir_.file("manifest.json"), damaged);
    const std::vector<std::string> before = names_there();
    EXPECT_THAT(message_of<StorageError>([&] { clean(CleanScope::leftovers); }),
                HasSubstr("start over"));
    EXPECT_EQ(names_there(), before);
    clean(CleanScope::everything);
    EXPECT_EQ(report_.committed_step, std::nullopt);
    EXPECT_TRUE(names_there().empty());
  }
}

TEST_F(SwapDirectoryTest, IsNotClearedWhileARunOrAReaderHasIt) {
  commit_first(8);
  leave_everything_a_dead_run_leaves();
  const std::vector<std::string> before = names_there();
  {
    const DirectoryLock run(dir_.path(), DirectoryLock::Mode::exclusive);
    for (const CleanMode mode : {CleanMode::list, CleanMode::remove}) {
      EXPECT_THAT(message_of<StorageError>([&] { clean(CleanScope::everything, mode); }),
                  HasSubstr("(process " + std::to_string(::getpid()) + ")"));
    }
  }
  {
    const auto reader = SwapStore::open_read_only(dir_.path(), *engine_);
    EXPECT_THROW(clean(CleanScope::leftovers), StorageError);
  }
  EXPECT_EQ(names_there(), before);
}

TEST_F(SwapDirectoryTest, SaysWhatOfADeadRunWasRemovedFromALockedDirectory) {
  leave_everything_a_dead_run_leaves();
  const DirectoryLock lock(dir_.path(), DirectoryLock::Mode::exclusive);
  CapturedLog log;
  remove_dead_files(dir_.path());
  EXPECT_THAT(names_there(), ElementsAre("bench.sluice", "lock"));
  ASSERT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(log.contains("removed 2 files (")) << log.messages()[0].text;
  remove_dead_files(dir_.path());
  EXPECT_EQ(log.messages().size(), 1U) << "nothing removed, nothing said";
}

TEST_F(SwapDirectoryTest, KeepsItsRankManifestWhereAnotherCouldNotBeRead) {
  replace_rank_manifest(dir_.path(), {7, {1, 2}}, Durability::process);
  for (const RankManifest& bad :
       {RankManifest{8, {}}, RankManifest{8, {1}}, RankManifest{-3, {1, 2}}})
    EXPECT_THROW(replace_rank_manifest(dir_.path(), bad, Durability::process), InvalidArgument);
  EXPECT_EQ(load_rank_manifest(dir_.path())->step, 7);
}

}  // namespace
}  // namespace sluice::offload::test
