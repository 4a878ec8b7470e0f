// A rank that differs, fails, dies, stands still or gets a signal: all ranks end together, and the
// output names the rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "deep_run.hpp"
#include "ranks_support.hpp"

namespace sluice::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

class RankFailures : public ::testing::Test {
 protected:
  // Each rank writes its process id, then becomes the program; `before` is shell of one rank.
  std::vector<std::string> wrapper(const std::string& rank = "", const std::string& before = "") {
    return {"/bin/sh", "-c",
            "echo $$ > '" + run_.file("pid") + "'.$OMPI_COMM_WORLD_RANK; " +
                (before.empty()
                     ? ""
                     : "if [ $OMPI_COMM_WORLD_RANK = " + rank + " ]; then " + before + "; fi; ") +
                "exec \"$@\"",
            "rank"};
  }
  pid_t pid_of(int rank) const {
    return std::stoi(file_text(run_.file("pid." + std::to_string(rank))));
  }
  // Blocks until rank 0 has written `count` steps.
  void wait_for_steps(Process& program, const std::string& name, std::size_t count) {
    for (int i = 0; i < 6000 && run_.values(name, "loss").size() < count; ++i) {
      ASSERT_FALSE(program.wait(0).has_value()) << program.text();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_GE(run_.values(name, "loss").size(), count) << program.text();
  }
  // Nobody is left of the ranks of a run.
  void expect_all_gone(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int i = 0; i < 500 && ::kill(pid_of(rank), 0) == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_NE(::kill(pid_of(rank), 0), 0) << "rank " << rank << " still runs";
    }
  }
  RanksRun run_;
};

const RanksCase kNvme{.ranks = 2, .stage = 3, .offload = "nvme", .clipping = 0.5};

TEST_F(RankFailures, AnotherModelFileIsOneLineThatNamesTheRank) {
  const std::vector<std::string> first = run_.arguments(kNvme, "run", 3);
  std::vector<std::string> second = first;
  std::string other = file_text(run_.file("run.model.json"));
  other.replace(other.find("\"n_layer\": 2"), 12, "\"n_layer\": 3");
  write_file(run_.file("other.model.json"), other);
  *std::find(second.begin(), second.end(), run_.file("run.model.json")) =
      run_.file("other.model.json");
  std::vector<std::string> line = RanksRun::line(2, first);
  line[4] = "1";  // -n
  line.insert(line.end(), {":", "-n", "1", sluice_program()});
  line.insert(line.end(), second.begin(), second.end());
  const ProgramResult result = run_program(line);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("sluice: rank 0: rank 1 has another model (--model) than rank "
                                    "0: all ranks of a run need the same one\n"));
  EXPECT_EQ(result.err.find("sluice: rank 1"), std::string::npos) << result.err;
}

TEST_F(RankFailures, ARankThatCannotStartEndsAllWithItsMessageOnce) {
  std::filesystem::create_directories(run_.file("run.nvme"));
  const std::vector<std::string> line =
      RanksRun::line(2, run_.arguments(kNvme, "run", 3), wrapper("1", "trap '' XFSZ; ulimit -f 8"));
  const ProgramResult result = run_program(line);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("sluice: rank 1: "));
  EXPECT_EQ(result.err.find("sluice: rank 0"), std::string::npos) << result.err;
}

// Rank 0 alone finds it. The other ranks may learn of it before rank 0 goes on, so it is tried
// several times.
TEST_F(RankFailures, AnErrorOfRankZeroAloneHasItsCodeAndIsShownWholeByRankZero) {
  RanksCase of{.ranks = 3, .stage = 3, .offload = "cpu", .exported = true};
  ASSERT_EQ(run_.train(of, "run", 2).exit_code, 0);
  const std::string checkpoints = run_.file("run.checkpoints");
  const std::vector<std::string> again = run_.arguments(of, "run", 3);
  std::vector<std::string> to_a_file = run_.arguments({.ranks = 3, .offload = "cpu"}, "other", 1);
  *std::find(to_a_file.begin(), to_a_file.end(), run_.file("other.report")) = run_.file("text");
  for (int i = 0; i < usual_or_deep(2, 4); ++i) {
    const ProgramResult refused = run_program(RanksRun::line(3, again));
    EXPECT_EQ(refused.exit_code, 4) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("sluice: rank 0: " + checkpoints + "/step-00000002: holds"));
    EXPECT_THAT(refused.err, HasSubstr("(sluice nvme clean " + checkpoints + " --committed)"));
    EXPECT_THAT(refused.err, Not(HasSubstr("sluice: rank 1")));
    const ProgramResult usage = run_program(RanksRun::line(3, to_a_file));
    EXPECT_EQ(usage.exit_code, 2) << usage.err;
    EXPECT_THAT(usage.err, HasSubstr("sluice: rank 0: " + run_.file("text") + " is a file"));
    EXPECT_THAT(usage.err, Not(HasSubstr("sluice: rank 1")));
  }
  // The advice, as it is written.
  ASSERT_EQ(run_sluice({"nvme", "clean", checkpoints, "--committed"}).exit_code, 0);
  const ProgramResult anew = run_program(RanksRun::line(3, again));
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
}

TEST_F(RankFailures, TheLauncherNamesTheRankThatFoundTheError) {
  RanksCase of{.ranks = 2, .stage = 3, .offload = "cpu"};
  std::vector<std::string> line = run_.arguments(of, "run", 1);
  *std::find(line.begin(), line.end(), run_.file("run.report")) = "/proc/absent/report";
  line.insert(line.begin(), {"launch", "--num-gpus", "2", sluice_program()});
  for (int i = 0; i < 4; ++i) {
    const ProgramResult result = run_sluice(line);
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 0 of 2 exited with code 4"));
    EXPECT_THAT(result.err, HasSubstr("/proc/absent"));
  }
}

// The part of one rank alone cannot be removed: the advice names the directory of all, and works.
TEST_F(RankFailures, TheAdviceAboutADamagedPartStartsOver) {
  const auto damage_states = [&] {
    for (const char* slot : {"0", "1"})
      std::filesystem::resize_file(
          run_.file("run.nvme/rank0-of-2/states." + std::string(slot) + ".swap"), 100);
  };
  const auto damage = [&](const std::string& name) {
    write_file(run_.file("run.nvme/" + name), "damaged\n");
  };
  const std::vector<std::function<void()>> damages = {
      damage_states, [&] { damage("rank0-of-2/manifest.json"); }, [&] { damage("ranks.json"); }};
  for (const auto& each : damages) {
    ASSERT_EQ(run_.train(kNvme, "run", 2).exit_code, 0);
    each();
    std::vector<std::string> arguments = run_.arguments(kNvme, "run", 3);
    arguments.push_back("--resume");
    const ProgramResult refused = run_program(RanksRun::line(2, arguments));
    EXPECT_EQ(refused.exit_code, 4) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("remove the run (sluice nvme clean " +
                                       run_.file("run.nvme") + " --committed) to start over"));
    ASSERT_EQ(run_sluice({"nvme", "clean", run_.file("run.nvme"), "--committed"}).exit_code, 0);
  }
}

// The states are in memory; the checkpoint of step 2 finds no room on rank 1.
TEST_F(RankFailures, ADiskThatIsFullOnOneRankEndsAllWithItsName) {
  RanksCase of{.ranks = 2, .stage = 3, .offload = "cpu"};
  of.sluice_keys = R"(, "checkpoint_dir": ")" + run_.file("checkpoints") +
                   R"(", "checkpoint_every": 2, "strict": true)";
  const auto begin = Clock::now();
  Process program = start_ranks(
      RanksRun::line(2, run_.arguments(of, "run", 1000), wrapper("1", "trap '' XFSZ; ulimit -f 8")),
      run_.file("output"));
  const std::optional<int> code = program.wait(120);
  ASSERT_TRUE(code.has_value()) << program.text();
  EXPECT_EQ(*code, 4) << program.text();
  EXPECT_THAT(program.text(), HasSubstr("rank 1: "));
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 60);
  expect_all_gone(2);
}

// Only the space is lost: the checkpoint of step 4 is whole, also for a strict run.
TEST_F(RankFailures, AnOldCheckpointThatCannotBeRemovedIsLeftWithALine) {
  namespace fs = std::filesystem;
  RanksCase of{.ranks = 2, .stage = 3, .offload = "cpu"};
  of.sluice_keys =
      R"(, "checkpoint_dir": ")" + run_.file("checkpoints") + R"(", "keep": 1, "strict": true)";
  ASSERT_EQ(run_.train(of, "run", 2).exit_code, 0);
  const fs::path old = run_.file("checkpoints/step-00000002");
  fs::permissions(old, fs::perms::owner_read | fs::perms::owner_exec);
  // Root may write to such a folder too, so its ranks give this right up.
  const std::vector<std::string> without_right = {
      "/bin/sh", "-c",
      "[ $(id -u) != 0 ] || exec setpriv --bounding-set -dac_override \"$@\"; exec \"$@\"", "rank"};
  std::vector<std::string> arguments = run_.arguments(of, "run", 4);
  arguments.push_back("--resume");
  const ProgramResult result = run_program(RanksRun::line(2, arguments, without_right));
  fs::permissions(old, fs::perms::owner_all);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("an old checkpoint is left: "));
  EXPECT_TRUE(fs::exists(old / "ranks.json"));
  EXPECT_TRUE(fs::exists(run_.file("checkpoints/step-00000004/ranks.json")));
  EXPECT_EQ(run_.report("run")["committed_step"].asInt64(), 4);
}

// As where rank 0 ran on another host, or a copy of the directory has missed ranks.json.
TEST_F(RankFailures, ACommittedPartWithoutRanksJsonIsKeptWhateverTheNumberOfRanks) {
  namespace fs = std::filesystem;
  ASSERT_EQ(run_.train(kNvme, "run", 2).exit_code, 0);
  fs::remove(run_.file("run.nvme/ranks.json"));
  fs::remove_all(run_.file("run.nvme/rank0-of-2"));
  for (const bool resume : {false, true}) {
    std::vector<std::string> arguments = run_.arguments(kNvme, "run", 2);
    if (resume) arguments.push_back("--resume");
    const ProgramResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank1-of-2: holds a rank's part of step 2"));
    EXPECT_THAT(result.err, Not(HasSubstr("nothing has been committed")));
  }
  EXPECT_TRUE(fs::exists(run_.file("run.nvme/rank1-of-2/manifest.json")));
}

TEST_F(RankFailures, ALostPartIsNamedToOneRankAndByVerify) {
  ASSERT_EQ(run_.train(kNvme, "run", 2).exit_code, 0);
  std::filesystem::remove_all(run_.file("run.nvme/rank1-of-2"));
  std::vector<std::string> arguments = run_.arguments(kNvme, "run", 2);
  arguments.push_back("--resume");
  const ProgramResult resumed = run_sluice(arguments);
  EXPECT_EQ(resumed.exit_code, 4) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("run.nvme/rank1-of-2 has none on host "));
  EXPECT_THAT(resumed.err,
              HasSubstr("where the folder is lost, restore it from a copy, or remove the "
                        "run (sluice nvme clean " +
                        run_.file("run.nvme") + " --committed) to start over"));
  const ProgramResult verified = run_sluice({"nvme", "verify", run_.file("run.nvme")});
  EXPECT_EQ(verified.exit_code, 4) << verified.err;
  EXPECT_THAT(verified.err, HasSubstr("rank1-of-2: is not here, and has the states of a rank"));
}

TEST_F(RankFailures, RanksWithOtherStepsAreTold) {
  std::vector<std::string> line = RanksRun::line(2, run_.arguments(kNvme, "run", 3));
  *std::find(line.begin(), line.end(), "2") = "1";  // of mpirun's -n
  const std::vector<std::string> other = RanksRun::line(1, run_.arguments(kNvme, "run", 2));
  line.insert(line.end(), {":", "-n", "1"});
  line.insert(line.end(), other.begin(), other.end());
  const ProgramResult result = run_program(line);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("rank 1 has another request (seed, steps, "));
}

TEST_F(RankFailures, AKilledRankEndsAllAndTheRunGoesOnFromItsLastStep) {
  const RanksRun undisturbed;
  ASSERT_EQ(undisturbed.train(kNvme, "run", 12).exit_code, 0);
  const std::vector<std::string> arguments = run_.arguments(kNvme, "run", 12);
  {
    Process program = start_ranks(RanksRun::line(2, arguments, wrapper()), run_.file("output"));
    wait_for_steps(program, "run", 3);
    const auto killed = Clock::now();
    ::kill(pid_of(1), SIGKILL);
    const std::optional<int> code = program.wait(30);
    ASSERT_TRUE(code.has_value()) << program.text();
    EXPECT_NE(*code, 0);
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - killed).count(), 30);
    EXPECT_THAT(program.text(), HasSubstr("rank 1"));
    expect_all_gone(2);
  }
  std::vector<std::string> again = arguments;
  again.push_back("--resume");
  const ProgramResult result = run_program(RanksRun::line(2, again));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run_.values("run", "loss"), undisturbed.values("run", "loss"));
}

// Two ranks begin an epoch, a kill ends them after a third of it, and one rank goes on: each step
// is there once and has the batch of an undisturbed epoch, whose sequences are drawn without
// repetition (dataset_test). The loss of a batch depends on its sequences.
TEST_F(RankFailures, AnEpochOfKilledRanksGoesOnOnOneRank) {
  RanksCase one{.ranks = 1, .stage = 3, .offload = "nvme", .accumulation = 2, .bf16 = false};
  RanksCase two = one;
  two.ranks = 2;
  two.accumulation = 1;
  const auto epoch = [](const RanksRun& run, const RanksCase& of) {
    std::vector<std::string> all = run.arguments(of, "run", 1);
    *std::find(all.begin(), all.end(), "--steps") = "--epochs";
    return all;
  };
  const RanksRun undisturbed;
  const ProgramResult whole = run_program(RanksRun::line(1, epoch(undisturbed, one)));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::vector<std::string> losses = undisturbed.values("run", "loss");
  ASSERT_GE(losses.size(), 50U);
  {
    Process program =
        start_ranks(RanksRun::line(2, epoch(run_, two), wrapper()), run_.file("output"));
    wait_for_steps(program, "run", losses.size() / 3);
    for (const int rank : {0, 1}) ::kill(pid_of(rank), SIGKILL);
    ASSERT_TRUE(program.wait(30).has_value()) << program.text();
    expect_all_gone(2);
    ASSERT_LT(run_.values("run", "loss").size(), losses.size()) << "killed after the end";
  }
  std::vector<std::string> again = epoch(run_, one);
  again.push_back("--resume");
  const ProgramResult result = run_program(RanksRun::line(1, again));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> mine = run_.values("run", "loss");
  EXPECT_EQ(run_.values("run", "step"), undisturbed.values("run", "step"));
  ASSERT_EQ(mine.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(std::stod(mine[i]) / std::stod(losses[i]), 1, 1e-5) << "step " << i + 1;
}

TEST_F(RankFailures, AStoppedRankIsNamedAndAllEnd) {
  Process program = start_ranks(RanksRun::line(2, run_.arguments(kNvme, "run", 100000), wrapper()),
                                run_.file("output"));
  wait_for_steps(program, "run", 2);
  ::kill(pid_of(1), SIGSTOP);
  const std::optional<int> code = program.wait(60);
  ::kill(pid_of(1), SIGKILL);
  ASSERT_TRUE(code.has_value()) << program.text();
  EXPECT_NE(*code, 0);
  EXPECT_THAT(program.text(), HasSubstr("rank 1"));
}

TEST_F(RankFailures, ASignalToOneRankStopsAllAfterOneStep) {
  const std::vector<std::string> arguments = run_.arguments(kNvme, "run", 100000);
  Process program = start_ranks(RanksRun::line(2, arguments, wrapper()), run_.file("output"));
  wait_for_steps(program, "run", 2);
  ::kill(pid_of(1), SIGTERM);
  const std::optional<int> code = program.wait(60);
  ASSERT_TRUE(code.has_value()) << program.text();
  EXPECT_EQ(*code, 143) << program.text();
  EXPECT_THAT(program.text(),
              HasSubstr("is committed; to go on:\n  start the 2 ranks as before, each with "
                        "this line (mpirun -n 2):\n  "));
  const std::size_t steps = run_.values("run", "loss").size();
  EXPECT_EQ(run_.report("run")["committed_step"].asUInt64(), steps);
}

// At SIGTERM mpirun would kill its ranks after a second.
TEST_F(RankFailures, MpirunHandsASignalToAllRanksAndTheyFinishTheStep) {
  const std::vector<std::string> arguments = run_.arguments(kNvme, "run", 100000);
  Process program = start_ranks(RanksRun::line(2, arguments, wrapper()), run_.file("output"));
  wait_for_steps(program, "run", 2);
  program.signal(SIGUSR1);
  const std::optional<int> code = program.wait(60);
  ASSERT_TRUE(code.has_value()) << program.text();
  EXPECT_EQ(*code, 138) << program.text();
  EXPECT_THAT(program.text(), HasSubstr("is committed; to go on:"));
  EXPECT_EQ(run_.report("run")["committed_step"].asUInt64(), run_.values("run", "loss").size());
}

}  // namespace
}  // namespace sluice::test
