// A swap store without faults, and the calls that it refuses.

#include "sluice/offload/swap_store.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "captured_log.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

using sluice::test::CapturedLog;

TEST_F(SwapStoreTest, GivesBackWhatWasWrittenInTheSameRun) {
  const auto store = create();
  update_all(*store, 1);
  EXPECT_EQ(difference_from(*store, 1), "");
  store->commit(1, "{}");
  EXPECT_EQ(difference_from(*store, 1), "");
  EXPECT_EQ(store->committed_step(), 1);
}

TEST_F(SwapStoreTest, GivesBackTheCommittedStepInTheNextRun) {
  commit_first(7, "{\"cursor\": 3}");
  const auto store = open();
  EXPECT_EQ(store->committed_step(), 7);
  EXPECT_EQ(store->committed_metadata(), "{\"cursor\": 3}");
  ASSERT_EQ(store->shard_count(), some_shards().size());
  EXPECT_EQ(store->index_of("embedding"), 2U);
  EXPECT_EQ(difference_from(*store, 7), "");
}

TEST_F(SwapStoreTest, ReadsZerosAndChecksForZerosBeforeAnythingIsWritten) {
  const auto store = create();
  std::vector<std::byte> bytes = read_shard(*store, 0);
  EXPECT_TRUE(same_bytes(bytes, std::vector<std::byte>(bytes.size())));
  EXPECT_NO_THROW(store->check(0, 0, bytes));
  bytes[kChecksumChunkBytes + 5] = std::byte{1};
  EXPECT_THROW(store->check(0, 0, bytes), StorageError);
  EXPECT_EQ(store->committed_step(), 0);
  EXPECT_FALSE(SwapStore::holds_committed(dir_.path()));
}

TEST_F(SwapStoreTest, ReadsTheOldBytesUntilTheUpdateIsFinished) {
  commit_first(1);
  const auto store = open();
  const auto content = content_of(store->shard(2), 2);
  store->begin_write(2, 0, content).finish();
  EXPECT_TRUE(same_bytes(read_shard(*store, 2), content_of(store->shard(2), 1)));
  store->finish_update(2);
  EXPECT_TRUE(same_bytes(read_shard(*store, 2), content));
}

TEST_F(SwapStoreTest, TakesTheChecksumsOfTheCaller) {
  const auto store = create();
  const auto content = content_of(store->shard(0), 1);
  ASSERT_GT(content.size(), kChecksumChunkBytes);
  std::vector<std::uint64_t> checksums;
  for (std::size_t at = 0; at < content.size(); at += kChecksumChunkBytes)
    checksums.push_back(checksum_of(
        std::span(content).subspan(at, std::min(kChecksumChunkBytes, content.size() - at))));
  store->begin_write(0, 0, content, checksums).finish();
  store->finish_update(0);
  EXPECT_NO_THROW(store->check(0, 0, content));
  checksums.back() ^= 1U;  // not that of the bytes
  store->begin_write(0, 0, content, checksums).finish();
  store->finish_update(0);
  EXPECT_THROW(store->check(0, 0, content), StorageError);
  checksums.pop_back();
  EXPECT_THROW(store->begin_write(0, 0, content, checksums), InvalidArgument);
}

TEST_F(SwapStoreTest, ForgetsWhatWasNotCommitted) {
  commit_first(1);
  {
    const auto store = open();
    update_all(*store, 2);
    EXPECT_EQ(difference_from(*store, 2), "");
  }
  const auto store = open();
  EXPECT_EQ(store->committed_step(), 1);
  EXPECT_EQ(difference_from(*store, 1), "");
}

TEST_F(SwapStoreTest, CommitsManyStepsOneAfterTheOther) {
  const auto store = create();
  for (std::int64_t step = 1; step <= 5; ++step) {
    update_all(*store, step);
    store->commit(step, std::to_string(step));
    EXPECT_EQ(difference_from(*store, step), "");
    EXPECT_EQ(SwapStore::read_committed(dir_.path()).step, step);
  }
}

TEST_F(SwapStoreTest, UpdatesSeveralTimesBetweenCommits) {
  {
    const auto store = create();
    for (std::int64_t step = 1; step <= 9; ++step) {
      update_all(*store, step);
      EXPECT_EQ(difference_from(*store, step), "");
      if (step % 3 == 0) store->commit(step, "{}");
    }
    update_all(*store, 10);
    update_all(*store, 11);
  }
  const auto store = open();
  EXPECT_EQ(store->committed_step(), 9);
  EXPECT_EQ(difference_from(*store, 9), "");
}

TEST_F(SwapStoreTest, LaterUpdatesBetweenCommitsMayWriteAPart) {
  const auto store = create();
  update_all(*store, 1);
  auto expected = content_of(store->shard(0), 1);
  const std::vector<std::byte> part(kChecksumChunkBytes, std::byte{9});
  store->begin_write(0, kChecksumChunkBytes, part).finish();
  store->finish_update(0);
  std::copy(part.begin(), part.end(),
            expected.begin() + static_cast<std::ptrdiff_t>(kChecksumChunkBytes));
  EXPECT_TRUE(same_bytes(read_shard(*store, 0), expected));
  store->commit(1, "{}");
  expect_whole(*store);
}

TEST_F(SwapStoreTest, CommitsShardsThatAStepLeftAsTheyWere) {
  commit_first(1);
  {
    const auto store = open();
    update_shard(*store, 0, 2);
    store->commit(2, "{}");
    store->commit(3, "{}");
  }
  const auto store = open();
  EXPECT_EQ(store->committed_step(), 3);
  EXPECT_TRUE(same_bytes(read_shard(*store, 0), content_of(store->shard(0), 2)));
  EXPECT_TRUE(same_bytes(read_shard(*store, 2), content_of(store->shard(2), 1)));
  expect_whole(*store);
}

TEST_F(SwapStoreTest, ReadsAnyRangeOfAShard) {
  commit_first(1);
  const auto store = open();
  const auto content = content_of(store->shard(0), 1);
  std::vector<std::byte> part(5000);
  store->begin_read(0, kChecksumChunkBytes - 17, part).finish();
  EXPECT_TRUE(same_bytes(part, std::span(content).subspan(kChecksumChunkBytes - 17, part.size())));
}

TEST_F(SwapStoreTest, KeepsMetadataAndNamesAsTheyWereGiven) {
  std::string awkward =
      "{\"a\": \"q\\\"uote\"}\n\ttab \\ back / \x01\x1f\x7f \xC3\xA9\xE2\x82\xAC \xFF";
  awkward += '\0';
  awkward += "after a zero byte";
  const std::vector<ShardSpec> shards = {{awkward.substr(0, 40), 10}, {std::string(255, '"'), 20}};
  {
    const auto store = SwapStore::create(dir_.path(), *engine_, shards, Durability::process,
                                         nvme::DirectIo::automatic);
    update_all(*store, 1);
    store->commit(9'000'000'000'000'000'000, awkward);
  }
  const CommittedState state = SwapStore::read_committed(dir_.path());
  EXPECT_EQ(state.step, 9'000'000'000'000'000'000);
  EXPECT_EQ(state.metadata, awkward);
  ASSERT_EQ(state.shards.size(), 2U);
  EXPECT_EQ(state.shards[0].name, shards[0].name);
  EXPECT_EQ(state.shards[1].name, shards[1].name);
  EXPECT_EQ(state.shards[1].size_bytes, 20U);
  EXPECT_EQ(open()->committed_metadata(), awkward);
}

TEST_F(SwapStoreTest, RefusesShardsThatCannotBeKeptApart) {
  const auto refused = [&](std::vector<ShardSpec> shards) {
    return message_of<InvalidArgument>([&] {
      SwapStore::create(dir_.path(), *engine_, std::move(shards), Durability::process,
                        nvme::DirectIo::automatic);
    });
  };
  EXPECT_THAT(refused({}), ::testing::HasSubstr("at least one shard"));
  EXPECT_THAT(refused({{"a", 1}, {"a", 2}}), ::testing::HasSubstr("\"a\""));
  EXPECT_THAT(refused({{"a", 0}}), ::testing::HasSubstr("no bytes"));
  EXPECT_THAT(refused({{"", 1}}), ::testing::HasSubstr("1 to 255"));
  EXPECT_THAT(refused({{std::string(256, 'x'), 1}}), ::testing::HasSubstr("256"));
  EXPECT_THAT(refused({{"a", ~0ULL}, {"b", 1}}), ::testing::HasSubstr("overflow"));
  EXPECT_TRUE(SwapStore::list_files(dir_.path()).empty());
}

TEST_F(SwapStoreTest, RefusesRangesOutsideAShardOrItsChunks) {
  const auto store = create();
  std::vector<std::byte> bytes(kChecksumChunkBytes);
  EXPECT_THROW(store->begin_read(2, 1, bytes), InvalidArgument);
  EXPECT_THROW(store->begin_read(2, ~0ULL, bytes), InvalidArgument);
  EXPECT_THROW(store->begin_read(4, 0, bytes), InvalidArgument);
  EXPECT_THROW(store->begin_write(0, 4096, bytes), InvalidArgument);
  EXPECT_THROW(store->begin_write(0, 0, std::span(bytes).first(4096)), InvalidArgument);
  EXPECT_THROW(store->begin_write(2, kChecksumChunkBytes, bytes), InvalidArgument);
  EXPECT_THROW(store->check(0, 1, bytes), InvalidArgument);
  EXPECT_THROW(store->index_of("nobody"), InvalidArgument);
  EXPECT_THROW(store->shard(4), InvalidArgument);
  EXPECT_TRUE(store->begin_write(0, 0, {}).done());
}

TEST_F(SwapStoreTest, RefusesToFinishAnUpdateThatLeftAChunkOut) {
  const auto store = create();
  const std::vector<std::byte> bytes(kChecksumChunkBytes);
  store->begin_write(0, 0, bytes).finish();
  store->begin_write(0, 2 * kChecksumChunkBytes, bytes).finish();
  EXPECT_THAT(message_of<InvalidArgument>([&] { store->finish_update(0); }),
              ::testing::AllOf(::testing::HasSubstr("blocks.0.attention"),
                               ::testing::HasSubstr("offset 1048576 ")));
  update_all(*store, 1);
  store->commit(1, "{}");
  EXPECT_THROW(store->finish_update(2), InvalidArgument) << "nothing written since the commit";
}

TEST_F(SwapStoreTest, RefusesToCommitShardsThatAreNotWhole) {
  const auto store = create();
  for (std::size_t i = 0; i < 3; ++i) update_shard(*store, i, 1);
  EXPECT_THAT(message_of<InvalidArgument>([&] { store->commit(1, "{}"); }),
              ::testing::HasSubstr("\"scale\" cannot be committed: it has never been written"));
  update_shard(*store, 3, 1);
  store->commit(1, "{}");
  store->begin_write(2, 0, content_of(store->shard(2), 2)).finish();
  EXPECT_THAT(message_of<InvalidArgument>([&] { store->commit(2, "{}"); }),
              ::testing::HasSubstr("\"embedding\" cannot be committed: an update of it"));
  EXPECT_EQ(SwapStore::read_committed(dir_.path()).step, 1);
  store->finish_update(2);
  store->commit(2, "{}");
  expect_whole(*store);
}

TEST_F(SwapStoreTest, CommitsAStateBeforeTheFirstStepAndNothingBelow) {
  const auto store = create();
  for (std::size_t i = 0; i < 4; ++i) update_shard(*store, i, 1);
  EXPECT_THROW(store->commit(-1, "{}"), InvalidArgument);
  EXPECT_THROW(store->prepare_commit(-1, "{}"), InvalidArgument);
  EXPECT_FALSE(SwapStore::holds_committed(dir_.path()));
  store->commit(0, "{}");
  EXPECT_TRUE(SwapStore::holds_committed(dir_.path()));
}

TEST_F(SwapStoreTest, RefusesToCreateOverACommittedRunAndNamesBothWaysOut) {
  commit_first(12);
  EXPECT_THAT(message_of<StorageError>([&] { create(); }),
              ::testing::AllOf(::testing::HasSubstr("committed run of step 12"),
                               ::testing::HasSubstr("--resume"),
                               ::testing::HasSubstr("choose another directory"),
                               ::testing::HasSubstr("--committed) to start over")));
  EXPECT_EQ(difference_from(*open(), 12), "");
}

TEST_F(SwapStoreTest, RefusesToOpenWhereNothingIsCommitted) {
  EXPECT_THAT(message_of<StorageError>([&] { open(); }),
              ::testing::HasSubstr("holds no committed run"));
  EXPECT_THROW(SwapStore::read_committed(dir_.path()), StorageError);
  EXPECT_THROW(SwapStore::open_read_only(dir_.path(), *engine_), StorageError);
}

TEST_F(SwapStoreTest, RemovesWhatADeadRunLeftAndSaysHowMuch) {
  {
    const auto store = create();
    update_all(*store, 1);  // and it ends without a commit
  }
  write_text(dir_.file("manifest.json.tmp"), "{\"form");
  write_text(dir_.file("scratch.gradients.swap"), std::string(100'000, 'x'));
  write_text(dir_.file("notes.swap.txt"), "not of the store");
  EXPECT_EQ(
      SwapStore::list_files(dir_.path()),
      (std::vector<std::string>{dir_.file("manifest.json.tmp"), dir_.file("scratch.gradients.swap"),
                                dir_.file("states.0.swap"), dir_.file("states.1.swap")}));
  CapturedLog log;
  const auto store = create();
  ASSERT_EQ(log.messages().size(), 1U);
  EXPECT_EQ(log.messages()[0].level, LogLevel::info);
  EXPECT_TRUE(log.contains("removed 4 files (8.")) << log.messages()[0].text;
  EXPECT_EQ(SwapStore::list_files(dir_.path()),
            (std::vector<std::string>{dir_.file("states.0.swap"), dir_.file("states.1.swap")}));
  EXPECT_TRUE(std::filesystem::exists(dir_.file("notes.swap.txt")));
  EXPECT_TRUE(same_bytes(read_shard(*store, 2), std::vector<std::byte>(kChecksumChunkBytes)));
}

TEST_F(SwapStoreTest, RemovesScratchOfAKilledRunWhenItGoesOn) {
  commit_first(3);
  write_text(dir_.file("scratch.gradients.swap"), "x");
  CapturedLog log;
  EXPECT_EQ(difference_from(*open(), 3), "");
  ASSERT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(log.contains("removed 1 file (")) << log.messages()[0].text;
  write_text(dir_.file("manifest.json.tmp"), "x");
  EXPECT_EQ(difference_from(*open(), 3), "");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("scratch.gradients.swap")));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("manifest.json.tmp")));
}

TEST_F(SwapStoreTest, NeedsTwoSlotsOfWholeBlocksOrOne) {
  const std::vector<ShardSpec> shards = {{"a", 4097}, {"b", 1}};
  const std::uint64_t two = SwapStore::disk_bytes(shards, Durability::process);
  EXPECT_EQ(two, SwapStore::disk_bytes(shards, Durability::power));
  EXPECT_EQ(two - SwapStore::disk_bytes(shards, Durability::none), 3U * 4096U);
  const auto store = SwapStore::create(dir_.path(), *engine_, shards, Durability::process,
                                       nvme::DirectIo::automatic);
  for (const char* name : {"states.0.swap", "states.1.swap"}) {
    struct stat status {};
    ASSERT_EQ(::stat(dir_.file(name).c_str(), &status), 0);
    EXPECT_EQ(status.st_size, 3 * 4096);
    EXPECT_GE(status.st_blocks * 512, 3 * 4096) << "allocated up front";
  }
}

TEST_F(SwapStoreTest, ReadsCommittedStatesWithoutTheRightToChangeThem) {
  commit_first(4);
  const auto store = SwapStore::open_read_only(dir_.path(), *engine_);
  const auto second = SwapStore::open_read_only(dir_.path(), *engine_);
  EXPECT_EQ(difference_from(*store, 4), "");
  EXPECT_EQ(difference_from(*second, 4), "");
  const std::vector<std::byte> bytes(kChecksumChunkBytes);
  EXPECT_THROW(store->begin_write(2, 0, bytes), InvalidArgument);
  EXPECT_THROW(store->finish_update(2), InvalidArgument);
  EXPECT_THROW(store->commit(5, "{}"), InvalidArgument);
}

TEST_F(SwapStoreTest, HoldsFiveThousandShards) {
  std::vector<ShardSpec> shards;
  shards.reserve(5'000);
  for (int i = 0; i < 5'000; ++i) shards.push_back({"shard." + std::to_string(i), 64});
  {
    const auto store =
        SwapStore::create(dir_.path(), *engine_, shards, Durability::process, nvme::DirectIo::off);
    update_all(*store, 1);
    store->commit(1, "{}");
  }
  const auto store = open();
  EXPECT_EQ(store->index_of("shard.4999"), 4'999U);
  EXPECT_TRUE(same_bytes(read_shard(*store, 4'999), content_of(store->shard(4'999), 1)));
}

}  // namespace
}  // namespace sluice::offload::test
