// Ranks that are each on a host of their own, as far as their drives go: a directory of the
// configuration is another one for each rank. Each rank has a mount namespace for that. And drives
// that are mounted elsewhere than when the ranks left their states.

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

TEST_F(RankHosts, ADriveThatIsTooSmallIsNamedWithItsHostOnce) {
  const RanksCase of{.ranks = 2, .stage = 3, .offload = "nvme"};
  const std::vector<std::string> arguments = run_.arguments(of, "run", 2);
  const std::vector<std::string> wrapper{
      "unshare",
      ::geteuid() == 0 ? "-m" : "-rm",
      "sh",
      "-c",
      "if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then mount -t tmpfs -o size=64k tmpfs \"$0\"; fi && "
      "exec \"$@\"",
      run_.file("run.nvme")};
  const ProgramResult result = run_program(RanksRun::line(2, arguments, wrapper));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const std::string folder = run_.file("run.nvme/rank1-of-2") + " of rank 1 on host ";
  EXPECT_THAT(result.err, HasSubstr("\n  " + folder));
  EXPECT_THAT(result.err, HasSubstr("\ndisk: " + folder));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("rank0-of-2")));
  const std::string verdict = "the run does not fit";
  const std::size_t first = result.err.find(verdict);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(result.err.find(verdict, first + 1), std::string::npos) << result.err;
}

TEST_F(RankHosts, StatesOfAnotherHostAreLeftForTheNewestCheckpointByAnotherNumberOfRanks) {
  const std::string keys =
      R"(, "checkpoint_every": 1, "checkpoint_dir": ")" + run_.file("checkpoints") + "\"";
  const RanksCase one{
      .ranks = 1, .stage = 3, .offload = "nvme", .accumulation = 2, .sluice_keys = keys};
  const RanksCase two{.ranks = 2, .stage = 3, .offload = "nvme", .sluice_keys = keys};
  const std::vector<std::string> wrapper = give_each_rank_its_own("run.nvme");
  const ProgramResult begun =
      run_program(RanksRun::line(1, run_.arguments(one, "run", 2), wrapper));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  std::vector<std::string> arguments = run_.arguments(two, "run", 3);
  arguments.emplace_back("--resume");
  const ProgramResult refused = run_program(RanksRun::line(2, arguments, wrapper));
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  const std::string swap = run_.file("run.nvme");
  EXPECT_THAT(refused.err, HasSubstr("rank 1: " + swap +
                                     ": has the states of 1 rank, all of which each rank reads, "
                                     "and " +
                                     swap + " has none on host "));
  EXPECT_THAT(refused.err, HasSubstr(": they may lie on the disks of other hosts. Start 1 rank "));
  EXPECT_THAT(refused.err, HasSubstr("to go on from the newest other checkpoint, " +
                                     run_.file("checkpoints/step-00000002") +
                                     ", clear the directory on every host (sluice nvme clean " +
                                     swap + " --committed, which loses its state) and resume"));
  for (const char* rank : {".0", ".1"})
    EXPECT_EQ(run_sluice({"nvme", "clean", swap + rank, "--committed"}).exit_code, 0);
  const ProgramResult resumed = run_program(RanksRun::line(2, arguments, wrapper));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resumed from step 2"));
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

// Two drives below NAME, and a configuration that names them.
std::vector<std::string> on_two_drives(const RanksRun& run, const RanksCase& of,
                                       const std::string& name, int steps) {
  fs::create_directories(run.file(name + ".nvme"));
  fs::create_directories(run.file(name + ".nvme2"));
  std::vector<std::string> arguments = run.arguments(of, name, steps);
  const std::string one = "\"" + run.file(name + ".nvme") + "\"";
  const std::string list = "[" + one + ", \"" + run.file(name + ".nvme2") + "\"]";
  std::string text = file_text(run.file(name + ".json"));
  for (std::size_t at = text.find(one); at != std::string::npos;
       at = text.find(one, at + list.size()))
    text.replace(at, one.size(), list);
  write_file(run.file(name + ".json"), text);
  return arguments;
}

void mount_elsewhere(const RanksRun& run, const std::string& from, const std::string& to) {
  for (const char* drive : {".nvme", ".nvme2"})
    fs::rename(run.file(from + drive), run.file(to + drive));
}

TEST(RankDrives, ThatAreMountedElsewhereAreFoundByAnotherNumberOfRanks) {
  const RanksCase two{.ranks = 2, .stage = 3, .offload = "nvme"};
  const RanksCase one{.ranks = 1, .stage = 3, .offload = "nvme", .accumulation = 2};
  const RanksRun run;
  const ProgramResult begun = run_program(RanksRun::line(2, on_two_drives(run, two, "begun", 2)));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  ASSERT_TRUE(fs::exists(run.file("begun.nvme2/rank1-of-2/stripe.json")));

  mount_elsewhere(run, "begun", "moved");
  std::vector<std::string> arguments = on_two_drives(run, one, "moved", 3);
  arguments.emplace_back("--resume");
  const std::vector<std::string> plan{
      "plan",    "--config", run.file("moved.json"), "--model", run.file("moved.model.json"),
      "--resume"};
  // A drive that is away is asked for by both, before anything is written.
  fs::rename(run.file("moved.nvme2"), run.file("away"));
  fs::create_directory(run.file("moved.nvme2"));
  for (const std::vector<std::string>& each : {plan, arguments}) {
    const ProgramResult refused = run_program(RanksRun::line(1, each));
    EXPECT_EQ(refused.exit_code, 4) << refused.out << refused.err;
    EXPECT_THAT(refused.err,
                HasSubstr("has part 2 of 2 of the run in " + run.file("moved.nvme/rank0-of-2")));
  }
  EXPECT_FALSE(fs::exists(run.file("moved.nvme/states.0.swap")));
  fs::remove_all(run.file("moved.nvme2"));
  fs::rename(run.file("away"), run.file("moved.nvme2"));

  const ProgramResult planned = run_program(RanksRun::line(1, plan));
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("from step 2 in " + run.file("moved.nvme")));
  const ProgramResult resumed = run_program(RanksRun::line(1, arguments));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(run_sluice({"nvme", "verify", run.file("moved.nvme")}).exit_code, 0);
  for (const char* drive : {"moved.nvme", "moved.nvme2"})
    EXPECT_FALSE(fs::exists(run.file(drive) + "/rank1-of-2")) << "not needed any more";

  mount_elsewhere(run, "moved", "again");
  arguments = on_two_drives(run, two, "again", 4);
  arguments.emplace_back("--resume");
  const ProgramResult back = run_program(RanksRun::line(2, arguments));
  ASSERT_EQ(back.exit_code, 0) << back.err;
  const ProgramResult verified = run_sluice({"nvme", "verify", run.file("again.nvme")});
  EXPECT_THAT(verified.out, HasSubstr("whole: step 4")) << verified.err;
  for (const char* drive : {"again.nvme/states.0.swap", "again.nvme2/states.0.part2.swap"})
    EXPECT_FALSE(fs::exists(run.file(drive))) << drive;
}

}  // namespace
}  // namespace sluice::test
