// Saved states of any number of ranks: read by another number, replaced by theirs, checked,
// cleaned.

#include "sluice/models/saved_state.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>

#include "flip_bit.hpp"
#include "message_of.hpp"
#include "rank_states.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_directory.hpp"

namespace sluice::models::test {
namespace {

namespace fs = std::filesystem;
using offload::CleanMode;
using offload::CleanScope;
using sluice::test::flip_bit;
using sluice::test::message_of;
using sluice::test::TempDir;
using ::testing::HasSubstr;

offload::VerifyReport verify(const std::string& directory) {
  const auto engine = make_engine();
  offload::MemoryPool staging(offload::Tier::host, offload::kUnlimited,
                              offload::make_host_source());
  offload::VerifyReport report;
  offload::verify_directory(directory, *engine, staging, {}, report);
  return report;
}

TEST(StateReader, AnyNumberOfRanksReadsWhatAnyOtherWrote) {
  for (const int writers : {1, 2, 3, 4}) {
    TempDir dir;
    commit_steps(dir.path(), writers, 2);
    for (const int readers : {1, 2, 3, 4, 7})
      EXPECT_EQ(difference_from(dir.path(), 2, readers), "") << writers << " to " << readers;
  }
}

TEST(StateReader, LeavesPaddingThatWasNotSaved) {
  TempDir dir;
  commit_steps(dir.path(), 1, 1);
  const auto engine = make_engine();
  const StateReader reader(read_state(dir.path()), *engine);
  const std::uint64_t saved = layouts(1)[1].flat_count;
  std::vector<float> values(50, 3.0F);
  reader.read("small", 1, saved - 20, std::as_writable_bytes(std::span(values)));
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i < 20 ? 0.0F : 3.0F) << i;
  reader.read_master("small", saved, values, {});
  for (const float value : values) EXPECT_EQ(value, 0.0F);
}

TEST(StateReader, NamesAChunkThatIsDamaged) {
  TempDir dir;
  commit_steps(dir.path(), 2, 1);
  flip_bit(dir.file("rank1-of-2/states.0.swap"), 1'500'000, 2);
  EXPECT_THAT(message_of<Error>([&] { difference_from(dir.path(), 1, 3); }),
              HasSubstr("rank1-of-2/states.0.swap"));
}

TEST(StateReader, RefusesPartsThatAreNotOfOneState) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  SavedState saved = read_state(dir.path());
  const auto engine = make_engine();
  std::swap(saved.parts[0].folder, saved.parts[1].folder);
  EXPECT_THAT(message_of<Error>([&] { const StateReader reader(saved, *engine); }),
              HasSubstr("does not hold this rank's part"));
  fs::rename(dir.file("rank1-of-2"), dir.file("elsewhere"));
  EXPECT_THAT(message_of<Error>([&] { const StateReader reader(read_state(dir.path()), *engine); }),
              HasSubstr("rank1-of-2 is not here"));
}

TEST(SavedState, APartAloneIsNoState) {
  TempDir dir;
  commit_steps(dir.path(), 2, 1);
  EXPECT_THAT(message_of<Error>([&] { read_state(dir.file("rank0-of-2")); }),
              HasSubstr("one of 2 ranks"));
  flip_bit(dir.file("ranks.json"), 30, 2);
  EXPECT_THAT(message_of<Error>([&] { read_state(dir.path()); }), HasSubstr("ranks.json"));
}

// Each row goes on with another number of ranks: killed after each moment, one whole state counts.
TEST(SavedState, AnotherNumberOfRanksReplacesAState) {
  struct Row {
    int before;
    int after;
  };
  for (const auto& [before, after] : {Row{2, 4}, Row{1, 2}, Row{2, 1}}) {
    TempDir dir;
    const std::string what = std::to_string(before) + " to " + std::to_string(after);
    commit_steps(dir.path(), before, 2);
    const auto started = on_ranks(dir.path(), after, [](Rank& rank) {
      rank.create();
      rank.write(2);  // killed before its commit
    });
    for (const std::string& error : started) EXPECT_EQ(error, "") << what;
    EXPECT_EQ(read_state(dir.path()).state.world_size, before) << what;
    EXPECT_EQ(difference_from(dir.path(), 2), "") << what;
    const auto finished = on_ranks(dir.path(), after, [](Rank& rank) {
      rank.create();
      rank.write(3);
      rank.commit(3);  // killed before the old state is removed
    });
    for (const std::string& error : finished) EXPECT_EQ(error, "") << what;
    EXPECT_EQ(read_state(dir.path()).state.world_size, after) << what;
    EXPECT_EQ(difference_from(dir.path(), 3), "") << what;
    offload::remove_other_states(dir.path(), after);
    EXPECT_EQ(difference_from(dir.path(), 3), "") << what;
    EXPECT_EQ(fs::exists(dir.file("manifest.json")), after == 1) << what;
    EXPECT_EQ(fs::exists(dir.file("ranks.json")), after > 1) << what;
    EXPECT_EQ(fs::exists(dir.file("rank0-of-2")), after == 2) << what;
  }
}

TEST(SavedState, ASupersededStateIsForgotten) {
  TempDir dir;
  commit_steps(dir.path(), 2, 3);
  commit_steps(dir.path(), 1, 2);  // of one rank, of a step before
  forget_superseded(dir.path());
  EXPECT_FALSE(fs::exists(dir.file("manifest.json")));
  EXPECT_EQ(difference_from(dir.path(), 3), "");
  commit_steps(dir.path(), 1, 4);
  forget_superseded(dir.path());
  EXPECT_FALSE(fs::exists(dir.file("ranks.json")));
  EXPECT_EQ(difference_from(dir.path(), 4), "");
}

TEST(SavedState, ACheckpointOfRanksIsFoundAsAnyOther) {
  TempDir dir;
  for (const int step : {2, 3}) {
    const std::string folder = dir.file("step-0000000" + std::to_string(step));
    fs::create_directory(folder);
    commit_steps(folder, step, step);  // step 2 of 2 ranks, step 3 of 3
  }
  EXPECT_EQ(newest_checkpoint(dir.path()), dir.file("step-00000003"));
  EXPECT_EQ(find_run(dir.path()), dir.file("step-00000003"));
  fs::rename(dir.file("step-00000003"), dir.file("step-00000003.tmp"));  // as a removal begins
  EXPECT_EQ(newest_checkpoint(dir.path()), dir.file("step-00000002"));
  offload::remove_dead_checkpoints(dir.path());
  EXPECT_FALSE(fs::exists(dir.file("step-00000003.tmp")));
  EXPECT_EQ(difference_from(dir.file("step-00000002"), 2), "");
}

// Its bytes are there: nothing goes back to an older one without a word, and nothing removes it.
TEST(Checkpoints, OneThatLostItsManifestIsDamaged) {
  for (const int ranks : {1, 2}) {
    TempDir dir;
    for (const int step : {2, 3}) {
      const std::string folder = dir.file("step-0000000" + std::to_string(step));
      fs::create_directory(folder);
      commit_steps(folder, ranks, step);
    }
    const std::string newest = dir.file("step-00000003");
    const std::string manifest = newest + (ranks == 1 ? "/manifest.json" : "/ranks.json");
    fs::rename(manifest, dir.file("backup"));
    offload::remove_dead_checkpoints(dir.path());
    const std::string said = message_of<StorageError>([&] { newest_checkpoint(dir.path()); });
    EXPECT_THAT(said, HasSubstr(newest + ": may be the newest checkpoint"));
    EXPECT_THAT(said, HasSubstr(dir.file("step-00000002")));
    EXPECT_THAT(said, HasSubstr("(its manifest is missing)"));
    fs::rename(dir.file("backup"), manifest);
    EXPECT_EQ(newest_checkpoint(dir.path()), newest);
    EXPECT_EQ(difference_from(newest, 3), "");
    fs::remove(dir.file("step-00000002") + (ranks == 1 ? "/manifest.json" : "/ranks.json"));
    EXPECT_EQ(newest_checkpoint(dir.path()), newest) << "an older one counts no more";
  }
}

TEST(Checkpoints, AFolderThatCannotBeListedIsNotEmpty) {
  TempDir dir;
  EXPECT_TRUE(list_checkpoints(dir.file("missing")).empty());
  fs::create_symlink(dir.file("loop"), dir.file("loop"));
  EXPECT_THROW(list_checkpoints(dir.file("loop")), IoError);
  EXPECT_THROW(newest_checkpoint(dir.file("loop")), IoError);
}

TEST(Checkpoints, OnlyThoseThatAreNewOrWereReplacedAreReadAgain) {
  TempDir dir;
  const auto folder = [&](int step) { return dir.file("step-0000000" + std::to_string(step)); };
  const auto save = [&](int step, int ranks) {
    fs::create_directory(folder(step));
    commit_steps(folder(step), ranks, step);
  };
  for (const int step : {1, 2, 3, 4, 5}) save(step, step == 2 ? 2 : 1);
  KnownCheckpoints known;
  EXPECT_EQ(list_checkpoints(dir.path(), known).size(), 5U);
  for (auto& [path, each] : known) each.checkpoint.line = "known";
  fs::remove_all(folder(3));
  fs::remove_all(folder(4));
  save(4, 1);
  flip_bit(folder(5) + "/manifest.json", 30, 0);
  fs::copy_file(folder(5) + "/manifest.json", folder(5) + "/copy");
  fs::rename(folder(5) + "/copy", folder(5) + "/manifest.json");
  save(6, 1);
  std::string lines;
  for (const Checkpoint& found : list_checkpoints(dir.path(), known)) {
    lines += std::to_string(found.step) + (found.line == "known" ? " known" : " read") +
             (found.damage.empty() ? "\n" : ", damaged\n");
  }
  EXPECT_EQ(lines, "1 known\n2 known\n4 read\n5 read, damaged\n6 read\n");
  EXPECT_EQ(known.size(), 4U) << "a damaged one is read each time";
}

TEST(Checkpoints, OneWhosePartOfARankWasDamagedIsReadAgain) {
  TempDir dir;
  const std::string folder = dir.file("step-00000001");
  fs::create_directory(folder);
  commit_steps(folder, 2, 1);
  KnownCheckpoints known;
  EXPECT_EQ(list_checkpoints(dir.path(), known).front().damage, "");
  fs::remove(folder + "/rank0-of-2/manifest.json");
  EXPECT_NE(list_checkpoints(dir.path(), known).front().damage, "");
}

TEST(Checkpoints, OneThatCannotBeOpenedIsDamaged) {
  TempDir dir;
  for (const int step : {2, 3}) {
    const std::string folder = dir.file("step-0000000" + std::to_string(step));
    fs::create_directory(folder);
    commit_steps(folder, step, step);
  }
  const auto block = [&](const std::string& folder) {
    fs::remove(dir.file(folder + "/ranks.json"));
    fs::create_symlink("ranks.json", dir.file(folder + "/ranks.json"));
  };
  block("step-00000002");
  EXPECT_EQ(newest_checkpoint(dir.path()), dir.file("step-00000003"));
  block("step-00000003");
  EXPECT_THROW(newest_checkpoint(dir.path()), StorageError);
}

TEST(Checkpoints, ADamagedOneThatWasMadeLaterMayBeTheNewest) {
  Checkpoint whole;
  whole.path = "step-00000100";
  whole.step = whole.order = 100;
  whole.saved_at = 1'790'000'000'000'000'000;
  Checkpoint damaged;
  damaged.path = "step-00000012";
  damaged.step = damaged.order = 12;
  damaged.damage = "flipped bytes";
  damaged.saved_at = whole.saved_at;
  EXPECT_NO_THROW(check_none_damaged_after({damaged, whole}, &whole));
  ++damaged.saved_at;  // the run went back to step 11, and on
  EXPECT_THROW(check_none_damaged_after({damaged, whole}, &whole), StorageError);
}

// A clock that ran fast gave its checkpoint a time that is still to come, and all later ones too.
TEST(Checkpoints, ADamagedOneIsComparedByTheTimesOfFolders) {
  TempDir dir;
  constexpr std::int64_t kMade = 1'790'000'000;
  Checkpoint whole;
  whole.path = dir.path();
  whole.step = whole.order = 100;
  whole.saved_at = (kMade + 3600) * 1'000'000'000;
  const timespec times[] = {{kMade, 0}, {kMade, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, whole.path.c_str(), times, 0), 0);
  Checkpoint damaged;
  damaged.path = "step-00000012";
  damaged.step = damaged.order = 12;
  damaged.damage = "flipped bytes";
  damaged.saved_at = kMade * 1'000'000'000;
  EXPECT_NO_THROW(check_none_damaged_after({damaged, whole}, &whole));
  ++damaged.saved_at;
  EXPECT_THROW(check_none_damaged_after({damaged, whole}, &whole), StorageError);
}

// As older versions left them, which wrote whole seconds.
TEST(Checkpoints, ThoseWithOneTimeAndStepAreInTheOrderOfTheirNames) {
  TempDir dir;
  const auto save = [&](const std::string& name, std::int64_t order) {
    Rank rank;
    rank.directory = dir.file(name);
    rank.create();
    rank.write(3);
    RunState state = state_at(3, 1);
    state.line = "of " + name;
    state.order = order;
    state.saved_at = 1'790'000'000'999'999'999;
    rank.store->commit(3, to_json(state));
    EXPECT_EQ(newest_checkpoint(dir.path()), rank.directory);
  };
  save("step-00000003", 4);
  save("step-00000003.2", 5);
  save("step-00000003.10", 3);
}

TEST(VerifyRanks, ChecksThePartsOfAll) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  const offload::VerifyReport whole = verify(dir.path());
  EXPECT_EQ(whole.step, 2);
  EXPECT_EQ(whole.shard_count, 2 * 2 * 3U);  // ranks, units, parts
  EXPECT_EQ(whole.checked_bytes,
            3 * sizeof(float) * (layouts(2)[0].flat_count + layouts(2)[1].flat_count));
  EXPECT_TRUE(whole.damaged.empty());
  flip_bit(dir.file("rank1-of-2/states.1.swap"), 1'500'000, 2);
  const offload::VerifyReport damaged = verify(dir.path());
  ASSERT_EQ(damaged.damaged.size(), 1U);
  EXPECT_EQ(damaged.damaged.front().path, dir.file("rank1-of-2/states.1.swap"));
  EXPECT_EQ(damaged.damaged.front().shard, "wide/master");
}

TEST(CleanRanks, LeavesWhatIsCommittedOnAllRanks) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  on_ranks(dir.path(), 4, [](Rank& rank) { rank.create(); });  // committed nothing
  on_ranks(dir.path(), 2, [](Rank& rank) {
    rank.resume();
    rank.write(3);
    rank.store->prepare_commit(3, to_json(state_at(3, 2)));
  });
  const auto report =
      offload::clean_directory(dir.path(), CleanScope::leftovers, CleanMode::remove);
  EXPECT_EQ(report.committed_step, 2);
  for (const char* folder : {"rank0-of-4", "rank1-of-4", "rank2-of-4", "rank3-of-4"})
    EXPECT_FALSE(fs::exists(dir.file(folder))) << folder;
  EXPECT_EQ(difference_from(dir.path(), 2), "");
}

TEST(CleanRanks, EverythingGoesWhenAsked) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  const auto report =
      offload::clean_directory(dir.path(), CleanScope::everything, CleanMode::remove);
  EXPECT_EQ(report.committed_step, 2);
  EXPECT_EQ(report.files.front().path, dir.file("ranks.json"));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(CleanRanks, ARanksFolderWithoutTheOthersKeepsItsPart) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  fs::remove(dir.file("ranks.json"));  // as on a host where rank 0 does not run
  const auto report =
      offload::clean_directory(dir.path(), CleanScope::leftovers, CleanMode::remove);
  EXPECT_EQ(report.committed_step, 2);
  EXPECT_TRUE(fs::exists(dir.file("rank1-of-2/manifest.json")));
}

}  // namespace
}  // namespace sluice::models::test
