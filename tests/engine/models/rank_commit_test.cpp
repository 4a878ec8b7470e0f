// Commits over several ranks: whatever happens to one of them, all have one step.

#include "sluice/models/rank_commit.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "rank_states.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/rank_failure.hpp"

namespace sluice::models::test {
namespace {

namespace fs = std::filesystem;
using sluice::test::TempDir;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankTexts, EachRankHasTheTextsOfAll) {
  const std::vector<std::string> own = {"", "a longer text of rank 1", "x"};
  TempDir dir;
  const std::vector<std::string> errors = on_ranks(dir.path(), 3, [&](Rank& rank) {
    const auto texts =
        gather_texts(*rank.communicator, own[static_cast<std::size_t>(rank.rank)], "texts");
    EXPECT_EQ(texts, own);
    EXPECT_EQ(broadcast_text(*rank.communicator, std::to_string(rank.rank), "a text"), "0");
    EXPECT_EQ(broadcast_text(*rank.communicator, "", "a text"), "");
  });
  EXPECT_THAT(errors, Each(""));
}

// No rank takes the text of one purpose for that of another.
TEST(RankTexts, RanksThatDoDifferentThingsAreTold) {
  TempDir dir;
  const auto errors = on_ranks(dir.path(), 2, [](Rank& rank) {
    rank.create();
    rank.write(1);
    if (rank.rank == 0) {
      rank.commit(1);
    } else {
      do_on_all(*rank.communicator, rank.directory, [] {});
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("all_gather of a commit in two phases")));
  EXPECT_THAT(errors, Each(HasSubstr("all_gather of failures of all ranks")));
  EXPECT_FALSE(holds_state(dir.path()));
}

// With an empty directory, as a run without one on a drive.
TEST(RankWork, TheOthersHaveTheKindAndTextOfTheErrorOfRankZero) {
  std::vector<FailureKind> kinds(3);
  TempDir dir;
  const std::vector<std::string> errors = on_ranks(dir.path(), 3, [&](Rank& rank) {
    const std::exception_ptr error = error_of([&] {
      do_on_first(*rank.communicator, "", []() -> std::string { throw InvalidArgument("odd"); });
    });
    kinds[static_cast<std::size_t>(rank.rank)] = failure_kind(error);
    std::rethrow_exception(error);
  });
  EXPECT_THAT(errors, ElementsAre("odd", "rank 0: odd", "rank 0: odd"));
  EXPECT_THAT(kinds, Each(FailureKind::usage));
}

// As where another rank has the text of the error already, and ends.
TEST(RankWork, ARankThrowsItsOwnErrorWhateverBecomesOfTheCall) {
  for (const bool on_all : {false, true}) {
    TempDir dir;
    const std::vector<std::string> errors = on_ranks(dir.path(), 2, [&](Rank& rank) {
      if (rank.rank == 1) {
        rank.communicator->abort("ends early");
        throw Error("ends early");
      }
      const auto fail = []() -> std::string { throw StorageError("f", "is damaged"); };
      if (on_all) do_on_all(*rank.communicator, "d", [&] { fail(); });
      do_on_first(*rank.communicator, "d", fail);
    });
    EXPECT_THAT(errors, ElementsAre("f: is damaged", "ends early"));
  }
}

TEST(RankTexts, PackedTextsComeBack) {
  const std::vector<std::string> texts = {"", "3:abc", std::string("a\0b", 3)};
  EXPECT_EQ(unpack_texts(pack_texts(texts)), texts);
  for (const char* damaged : {"3:ab", ":", "x:abc", "99999999999999999999:a", "3"})
    EXPECT_THROW(unpack_texts(damaged), InvalidArgument) << damaged;
}

TEST(RankCommit, CommitsOneStepOnAllRanks) {
  for (const Durability durability : {Durability::process, Durability::power}) {
    TempDir dir;
    commit_steps(dir.path(), 2, 3, durability);
    EXPECT_EQ(difference_from(dir.path(), 3), "");
    EXPECT_FALSE(fs::exists(dir.file("rank0-of-2/manifest.prepared.json")));
  }
}

TEST(RankCommit, ARankThatIsAStepAheadGoesBack) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  const auto errors = on_ranks(dir.path(), 2, [](Rank& rank) {
    rank.resume();
    if (rank.rank == 0) return;
    rank.write(3);
    rank.store->prepare_commit(3, to_json(state_at(3, 2)));  // killed here
  });
  EXPECT_EQ(errors, kNoErrors2);
  EXPECT_EQ(difference_from(dir.path(), 2), "");
  const auto resumed = on_ranks(dir.path(), 2, [](Rank& rank) {
    rank.resume();
    EXPECT_EQ(rank.store->committed_step(), 2);
    rank.write(3);
    rank.commit(3);
  });
  EXPECT_EQ(resumed, kNoErrors2);
  EXPECT_EQ(difference_from(dir.path(), 3), "");
}

// A commit of two ranks up to ranks.json, without the second phase.
void replace_manifest(const Rank& rank, std::int64_t step) {
  const std::uint64_t digest = rank.store->prepare_commit(step, to_json(state_at(step, 2)));
  offload::RankManifest manifest{.step = step, .digests = {}};
  for (const std::string& each :
       gather_texts(*rank.communicator, std::to_string(digest), "digests"))
    manifest.digests.push_back(std::stoull(each));
  if (rank.rank == 0) offload::replace_rank_manifest(rank.directory, manifest, Durability::process);
}

// Killed after rank 0 replaced ranks.json: on all ranks, or on some, the second phase is missing.
TEST(RankCommit, AStepThatAllRanksHadIsCommittedByTheNextRun) {
  for (const int finished : {-1, 0, 1}) {
    TempDir dir;
    commit_steps(dir.path(), 2, 2);
    const auto errors = on_ranks(dir.path(), 2, [&](Rank& rank) {
      rank.resume();
      rank.write(3);
      replace_manifest(rank, 3);
      rank.communicator->barrier();
      if (rank.rank == finished) rank.store->finish_commit();
    });
    EXPECT_EQ(errors, kNoErrors2);
    EXPECT_EQ(difference_from(dir.path(), 3), "") << finished;  // without a right to write
    const auto resumed = on_ranks(dir.path(), 2, [](Rank& rank) {
      rank.resume();
      rank.write(4);  // over step 2
      EXPECT_EQ(rank.store->committed_step(), 3);
    });
    EXPECT_EQ(resumed, kNoErrors2);
    EXPECT_EQ(difference_from(dir.path(), 3), "") << finished;
  }
}

TEST(RankCommit, NothingIsWrittenWhileTheOutcomeIsUnknown) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  const auto errors = on_ranks(dir.path(), 2, [](Rank& rank) {
    rank.resume();
    rank.write(3);
    if (rank.rank == 1) return;  // leaves before the commit
    EXPECT_THROW(rank.commit(3), Error);
    EXPECT_THROW(rank.write(4), StorageError);
    EXPECT_EQ(rank.store->committed_step(), 2);
  });
  EXPECT_EQ(errors, kNoErrors2);
  EXPECT_EQ(difference_from(dir.path(), 2), "");
}

// As where rank 0 replaced ranks.json and the sync of its directory failed: the caller may catch
// the error and commit again, or end in an orderly way.
TEST(RankCommit, ACommitAgainKeepsTheStepThatMayBeCommitted) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  const auto errors = on_ranks(dir.path(), 2, [](Rank& rank) {
    rank.resume();
    rank.write(3);
    replace_manifest(rank, 3);
    for (const std::int64_t step : {3, 4}) {
      const std::exception_ptr error = error_of([&] { rank.commit(step); });
      EXPECT_THAT(failure_text(error), HasSubstr("end this run and resume"));
      EXPECT_THROW(rank.write(4), StorageError);
    }
  });
  EXPECT_EQ(errors, kNoErrors2);
  EXPECT_EQ(difference_from(dir.path(), 3), "");
}

TEST(RankCommit, ARankThatCannotWriteKeepsAllAtTheStepBefore) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2);
  const std::string obstacle = dir.file("rank1-of-2/manifest.prepared.json.tmp");
  std::vector<std::string> said(2);
  const auto errors = on_ranks(dir.path(), 2, [&](Rank& rank) {
    rank.resume();
    rank.write(3);
    if (rank.rank == 1) fs::create_directory(obstacle);
    try {
      rank.commit(3);
    } catch (const std::exception& error) {  // an IoError on rank 1
      said[static_cast<std::size_t>(rank.rank)] = error.what();
    }
    EXPECT_EQ(rank.store->committed_step(), 2);
    rank.communicator->barrier();
    if (rank.rank == 1) fs::remove(obstacle);
    rank.commit(3);  // it is known that step 3 was not committed, so it can be tried again
  });
  EXPECT_EQ(errors, kNoErrors2);
  EXPECT_THAT(said[0], HasSubstr("rank 1"));
  EXPECT_THAT(said[0], HasSubstr("manifest.prepared.json"));
  EXPECT_THAT(said[1], HasSubstr("manifest.prepared.json"));
  EXPECT_EQ(difference_from(dir.path(), 3), "");
}

TEST(RankCommit, RanksOfDifferentStepsAreRefused) {
  TempDir dir;
  const auto errors = on_ranks(dir.path(), 2, [](Rank& rank) {
    rank.create();
    rank.write(1);
    rank.commit(1 + rank.rank);
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 commits step 2")));
  EXPECT_FALSE(holds_state(dir.path()));
}

TEST(RankCommit, WithoutDurabilityTheOrderlyEndCommits) {
  TempDir dir;
  commit_steps(dir.path(), 2, 2, Durability::none);
  EXPECT_FALSE(holds_state(dir.path()));
  TempDir closed;
  const auto errors = on_ranks(closed.path(), 2, [](Rank& rank) {
    rank.create(Durability::none);
    rank.write(1);
    rank.commit(1);
    close_parts(*rank.store, *rank.communicator, rank.directory);
  });
  EXPECT_EQ(errors, kNoErrors2);
  EXPECT_EQ(difference_from(closed.path(), 1), "");
}

TEST(RankCommit, WithoutDurabilityTheStateOfMoreRanksStaysUntilTheEnd) {
  TempDir dir;
  EXPECT_EQ(on_ranks(dir.path(), 2,
                     [](Rank& rank) {
                       rank.create(Durability::process);
                       rank.write(1);
                       rank.commit(1);
                     }),
            kNoErrors2);
  const auto errors = on_ranks(dir.path(), 3, [](Rank& rank) {
    rank.create(Durability::none);
    rank.write(2);
    rank.commit(2);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(difference_from(dir.path(), 1), "") << "a killed run left the state before it";
}

// A child with two ranks commits step after step, until it is killed.
pid_t start_training(const std::string& directory, Durability durability) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  on_ranks(directory, 2, [&](Rank& rank) {
    rank.resume(durability);
    for (std::int64_t step = rank.store->committed_step() + 1;; ++step) {
      rank.write(step);
      rank.commit(step);
    }
  });
  ::_exit(1);  // an error ended a rank
}

TEST(RankCommit, KilledAtAnyMomentAllRanksHaveOneWholeStep) {
  TempDir dir;
  commit_steps(dir.path(), 2, 1);
  std::int64_t last = 1;
  constexpr int kRounds = 50;
  int ahead = 0;
  for (int round = 0; round < kRounds; ++round) {
    const pid_t child =
        start_training(dir.path(), round % 5 == 4 ? Durability::power : Durability::process);
    // One more commit, then some part of the next step, on a slow machine too.
    for (int ms = 0; ms < 60'000 && offload::load_rank_manifest(dir.path())->step <= last; ++ms)
      ::usleep(1000);
    ::usleep(static_cast<useconds_t>(7'919 * round % 40'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a rank failed in round " << round;
    for (const char* folder : {"rank0-of-2", "rank1-of-2"})
      ahead += fs::exists(dir.file(folder + std::string("/manifest.prepared.json"))) ? 1 : 0;
    const std::int64_t step = read_state(dir.path()).state.step;
    EXPECT_GT(step, last) << round;
    ASSERT_EQ(difference_from(dir.path(), step), "") << "round " << round;
    last = step;
  }
  RecordProperty("killed_between_the_phases", ahead);
}

}  // namespace
}  // namespace sluice::models::test
