// Ranks that are each on a host of their own, as far as their drives go: a directory of the
// configuration is another one for each rank. Each rank has a mount namespace for that.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "ranks_support.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

class RankHosts : public ::testing::Test {
 protected:
  // Rank N finds PLACE.N in `place`.
  static std::vector<std::string> wrapper(const std::string& place) {
    return {"unshare",
            ::geteuid() == 0 ? "-m" : "-rm",
            "sh",
            "-c",
            "mount --bind \"$0.$OMPI_COMM_WORLD_RANK\" \"$0\" && exec \"$@\"",
            place};
  }
  // `place`: a name among the files of the run.
  std::vector<std::string> give_each_rank_its_own(const std::string& place) const {
    fs::create_directories(run_.file(place));
    for (const char* rank : {".0", ".1"}) fs::create_directories(run_.file(place + rank));
    return wrapper(run_.file(place));
  }
  void SetUp() override {
    std::vector<std::string> line = give_each_rank_its_own("probe");
    line.insert(line.begin(), {"/usr/bin/env", "OMPI_COMM_WORLD_RANK=0"});
    line.emplace_back("true");
    const ProgramResult result = run_program(line);
    if (result.exit_code != 0)
      GTEST_SKIP() << "a mount namespace of one's own is not allowed here: " << result.err;
  }
  RanksRun run_;
};

TEST_F(RankHosts, ACommittedRunGoesOnFromTheDrivesOfItsHosts) {
  const RanksCase of{.ranks = 2, .stage = 3, .offload = "nvme", .clipping = 0.5};
  const RanksRun undisturbed;
  ASSERT_EQ(undisturbed.train(of, "run", 4).exit_code, 0);
  const std::vector<std::string> wrapper = give_each_rank_its_own("run.nvme");
  const ProgramResult begun = run_program(RanksRun::line(2, run_.arguments(of, "run", 2), wrapper));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  EXPECT_TRUE(fs::exists(run_.file("run.nvme.1/rank1-of-2/manifest.json")));
  EXPECT_FALSE(fs::exists(run_.file("run.nvme.0/rank1-of-2")));
  EXPECT_TRUE(fs::is_empty(run_.file("run.nvme")));
  std::vector<std::string> arguments = run_.arguments(of, "run", 4);
  arguments.emplace_back("--resume");
  const ProgramResult resumed = run_program(RanksRun::line(2, arguments, wrapper));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resumed from step 2"));
  EXPECT_EQ(run_.values("run", "loss"), undisturbed.values("run", "loss"));
  EXPECT_FALSE(fs::exists(run_.file("run.nvme.0/rank1-of-2")));
}

// Not after the last step, when all work would be lost.
TEST_F(RankHosts, CheckpointDirectoriesOfTheirOwnAreFoundBeforeTheFirstStep) {
  const RanksCase of{.ranks = 2, .stage = 3, .offload = "cpu", .exported = true};
  const std::vector<std::string> wrapper = give_each_rank_its_own("run.checkpoints");
  const ProgramResult result =
      run_program(RanksRun::line(2, run_.arguments(of, "run", 2), wrapper));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the directory of checkpoints " + run_.file("run.checkpoints") +
                                    " of rank 1 on host "));
  EXPECT_THAT(result.err, HasSubstr(" is not that of rank 0 on host "));
  EXPECT_THAT(run_.values("run", "loss"), ::testing::IsEmpty());
  for (const char* rank : {".0", ".1"})
    EXPECT_TRUE(fs::is_empty(run_.file(std::string("run.checkpoints") + rank)));
}

}  // namespace
}  // namespace sluice::test
