// `sluice launch` as its users run it, with shell scripts in place of training programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <json/json.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

// Lines of a text, sorted.
std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// In a child: standard output becomes a pipe that nobody reads, or that has no reader.
void write_to_nobody() {
  int ends[2];
  if (::pipe(ends) != 0) ::_exit(127);
  ::dup2(ends[1], STDOUT_FILENO);
}
void write_without_reader() {
  int ends[2];
  if (::pipe(ends) != 0) ::_exit(127);
  ::dup2(ends[1], STDOUT_FILENO);
  ::close(ends[0]);
}
// The rank's 40 KB fit in its pipe to the launcher; with the prefixes they do not fit in a pipe.
constexpr const char* kManyLines = "head -c 40000 /dev/zero | tr '\\0' '\\n'\n";

class Launch : public ::testing::Test {
 protected:
  // A script of /bin/sh that ranks run.
  std::string script(const std::string& body) const {
    std::string path = directory_.file("rank.sh");
    write_file(path, "#!/bin/sh\n" + body);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  ProgramResult launch(std::vector<std::string> flags, const std::string& body,
                       const Environment& environment = {}) const {
    flags.insert(flags.begin(), "launch");
    flags.push_back(script(body));
    return run_sluice(flags, environment);
  }
  // Starts launch in a child and sends `signals` once each rank has made a file "ready.RANK".
  // `before` runs in the child, after its output was sent to files.
  ProgramResult interrupted(const std::vector<std::string>& flags, const std::string& body,
                            int ranks, const std::vector<int>& signals,
                            const std::function<void()>& before = {}) const;

  bool is_ready(int ranks) const {
    for (int rank = 0; rank < ranks; ++rank)
      if (!std::filesystem::exists(directory_.file("ready." + std::to_string(rank)))) return false;
    return true;
  }
  // Every process of the test's ranks has this text in its command line.
  bool runs_still() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string command = file_text(entry.path() / "cmdline");
      if (command.find(directory_.file("rank.sh")) != std::string::npos) return true;
    }
    return false;
  }
  // Within ten seconds; the kernel ends killed processes asynchronously.
  bool all_are_gone() const {
    for (int i = 0; i < 1000 && runs_still(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return !runs_still();
  }
  TempDir directory_;
};

ProgramResult Launch::interrupted(const std::vector<std::string>& flags, const std::string& body,
                                  int ranks, const std::vector<int>& signals,
                                  const std::function<void()>& before) const {
  std::vector<std::string> line = {sluice_program(), "launch"};
  line.insert(line.end(), flags.begin(), flags.end());
  line.push_back(script("cd " + directory_.file("") + "\n" + body));
  const std::string out = directory_.file("out");
  const std::string err = directory_.file("err");
  Process launcher(std::move(line), {{}, out, err, before});
  for (int i = 0; i < 6000 && !is_ready(ranks); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(is_ready(ranks));
  for (const int number : signals) {
    launcher.signal(number);
    // Each signal is seen before the next: the launcher answers the first with a line.
    for (int i = 0; i < 6000 && file_text(err).find("passed on") == std::string::npos; ++i) {
      if (number == SIGKILL) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  const int exit_code = launcher.wait();
  return {exit_code, file_text(out), file_text(err), 0};
}

TEST_F(Launch, GivesEachRankTheVariablesOfTorchrun) {
  const ProgramResult result =
      launch({"--num-gpus", "2", "--master_port", "1234"},
             "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(sorted_lines(result.out), ::testing::ElementsAre("[rank 0] 0/2 0/2 127.0.0.1:1234",
                                                               "[rank 1] 1/2 1/2 127.0.0.1:1234"));
  EXPECT_THAT(result.err, HasSubstr("2 ranks of "));
}

TEST_F(Launch, PassesTheProgramsOwnFlagsOn) {
  for (const char* spelling : {"--num-gpus", "--num_gpus"}) {
    const ProgramResult result = run_sluice(
        {"launch", spelling, "1", script("echo \"$@\"\n"), "--num-gpus", "7", "--json", "--help"});
    EXPECT_EQ(result.out, "[rank 0] --num-gpus 7 --json --help\n") << result.err;
  }
}

TEST_F(Launch, KeepsTheLinesOfManyWritersWhole) {
  const ProgramResult result = launch({"--num-gpus", "4"},
                                      "i=0; while [ $i -lt 200 ]; do printf 'a%s' $RANK; printf "
                                      "'b%s\\n' $RANK; i=$((i+1)); done\n");
  std::istringstream lines(result.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string rank = line.substr(6, 1);
    ASSERT_EQ(line, "[rank " + rank + "] a" + rank + "b" + rank);
  }
  EXPECT_EQ(count, 800);
}

TEST_F(Launch, SharesTheThreadsAndSaysSo) {
  const ProgramResult result =
      launch({"--num-gpus", "64"}, "echo $OMP_NUM_THREADS\n", {{"LC_ALL", "C"}});
  EXPECT_THAT(result.err, HasSubstr("OMP_NUM_THREADS=1 in each"));
  EXPECT_THAT(result.out, HasSubstr("[rank 63] 1\n"));
  EXPECT_THAT(launch({}, "echo $OMP_NUM_THREADS\n", {{"OMP_NUM_THREADS", "7"}}).out,
              HasSubstr("[rank 0] 7\n"));
}

TEST_F(Launch, BindsRanksToTheirCores) {
  const ProgramResult result =
      launch({"--num-gpus", "1", "--bind_cores_to_rank", "--bind-core-list", "0"},
             "grep Cpus_allowed_list /proc/self/status; echo $OMP_NUM_THREADS\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] Cpus_allowed_list:\t0\n[rank 0] 1\n");
  EXPECT_THAT(result.err, HasSubstr("rank 0 has the cores 0\n"));
}

TEST_F(Launch, WritesALogForEachRank) {
  const std::string logs = directory_.file("logs/here");
  const ProgramResult result =
      launch({"--num-gpus", "2", "--log_dir", logs}, "echo out$RANK; echo err$RANK >&2\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(file_text(logs + "/rank-" + rank + ".log"),
                AllOf(HasSubstr(std::string("out") + rank), HasSubstr(std::string("err") + rank)));
  }
}

TEST_F(Launch, NamesTheRankThatFailedFirstAndEndsTheOthers) {
  const auto began = Clock::now();
  const ProgramResult result =
      launch({"--num-gpus", "3"}, "[ $RANK = 1 ] && { echo no memory >&2; exit 7; }; sleep 300\n");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rank 1 of 3 exited with code 7"), HasSubstr("  no memory\n"),
                    Not(HasSubstr("rank 0 of 3")), Not(HasSubstr("rank 2 of 3"))));
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(60));
  EXPECT_TRUE(all_are_gone());
}

TEST_F(Launch, NamesTheSignalThatEndedARank) {
  const ProgramResult result = launch({"--num-gpus", "2"}, "kill -SEGV $$\n");
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV);
  EXPECT_THAT(result.err, HasSubstr("was ended by signal 11 (SIGSEGV)"));
}

TEST_F(Launch, KillsRanksThatIgnoreTheEndOfTheOthers) {
  const ProgramResult result = launch({"--num-gpus", "2"},
                                      "[ $RANK = 1 ] && exit 3\n"
                                      "trap '' TERM INT; while true; do sleep 1; done\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_TRUE(all_are_gone());
}

TEST_F(Launch, LeavesNothingThatARankStarted) {
  const ProgramResult result = launch(
      {"--num-gpus", "1"}, "sh -c 'sleep 300; : " + directory_.file("rank.sh") + "' & exit 0\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(all_are_gone());
}

TEST_F(Launch, PassesTheFirstSignalOnAndWaits) {
  const ProgramResult result =
      interrupted({"--num-gpus", "2"},
                  "trap 'echo finishing; exit 130' INT; touch ready.$RANK\n"
                  "while true; do sleep 0.1; done\n",
                  2, {SIGINT});
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank 0] finishing"), HasSubstr("[rank 1] finishing")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("SIGINT: passed on"), Not(HasSubstr("first to fail"))));
}

TEST_F(Launch, KillsAfterTheGrace) {
  const ProgramResult result =
      interrupted({"--num-gpus", "2", "--grace", "0.2"},
                  "trap '' TERM; touch ready.$RANK; while true; do sleep 1; done\n", 2, {SIGTERM});
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_TRUE(all_are_gone());
}

TEST_F(Launch, KillsAtOnceAtTheSecondSignal) {
  const auto began = Clock::now();
  const ProgramResult result = interrupted(
      {"--num-gpus", "2", "--grace", "300"},
      "trap '' INT; touch ready.$RANK; while true; do sleep 1; done\n", 2, {SIGINT, SIGINT});
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(120));
  EXPECT_TRUE(all_are_gone());
}

TEST_F(Launch, LeavesNoRanksWhenItIsKilledItself) {
  interrupted({"--num-gpus", "2"},
              "touch ready.$RANK; sh -c 'sleep 300; : " + directory_.file("rank.sh") + "'; true\n",
              2, {SIGKILL});
  EXPECT_TRUE(all_are_gone());
}

TEST_F(Launch, RefusesAProgramThatIsNotThere) {
  const ProgramResult result = run_sluice({"launch", "--num-gpus", "2", "./absent"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("./absent: cannot be executed: No such file"));
}

TEST_F(Launch, RunsPythonScriptsAndModulesWithPython) {
  write_file(directory_.file("python"), "#!/bin/sh\necho python \"$@\"\n");
  std::filesystem::permissions(directory_.file("python"), std::filesystem::perms::owner_all);
  const Environment path = {{"PATH", directory_.file("") + ":/usr/bin:/bin"}};
  EXPECT_EQ(run_sluice({"launch", "--num-gpus", "1", "train.py", "--lr", "1"}, path).out,
            "[rank 0] python -u train.py --lr 1\n");
  EXPECT_EQ(run_sluice({"launch", "--num-gpus", "1", "--module", "pkg.train", "x"}, path).out,
            "[rank 0] python -u -m pkg.train x\n");
  const Environment named = {{"PATH", "/usr/bin:/bin"}, {"PYTHON_EXEC", directory_.file("python")}};
  EXPECT_EQ(run_sluice({"launch", "--num-gpus", "1", "train.py"}, named).out,
            "[rank 0] python -u train.py\n");
  EXPECT_THAT(run_sluice({"launch", "--no-python", "train.py"}, path).err,
              HasSubstr("train.py: cannot be executed"));
}

TEST_F(Launch, HidesOtherGpus) {
  const ProgramResult result =
      launch({"--include", "localhost:2,0"}, "echo $RANK of $WORLD_SIZE: $CUDA_VISIBLE_DEVICES\n",
             {{"CUDA_VISIBLE_DEVICES", "4,5,6"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(sorted_lines(result.out),
              ::testing::ElementsAre("[rank 0] 0 of 2: 4,6", "[rank 1] 1 of 2: 4,6"));
}

TEST_F(Launch, RefusesASlotThatCudaVisibleDevicesHides) {
  const std::string hosts = directory_.file("hosts");
  write_file(hosts, "localhost slots=4\n");
  const auto error = [&](const char* include, const char* visible) {
    const ProgramResult result = launch({"--hostfile", hosts, "--include", include}, "",
                                        {{"CUDA_VISIBLE_DEVICES", visible}});
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error("localhost:3", "0"),
              HasSubstr("slot 3 of localhost: CUDA_VISIBLE_DEVICES=0 has slot 0 only\n"));
  EXPECT_THAT(error("localhost:0,2", "5,6"),
              HasSubstr("slot 2 of localhost: CUDA_VISIBLE_DEVICES=5,6 has slots 0 to 1\n"));
}

TEST_F(Launch, RefusesFlagsThatExcludeEachOther) {
  const auto error = [&](std::vector<std::string> flags) {
    const ProgramResult result = launch(std::move(flags), "", {{"CUDA_VISIBLE_DEVICES", ""}});
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({"--include", "a", "--exclude", "b"}), HasSubstr("exclude each other"));
  EXPECT_THAT(error({"--module", "--no-python"}), HasSubstr("exclude each other"));
  EXPECT_THAT(error({"--bind-core-list", "0"}), HasSubstr("needs --bind-cores-to-rank"));
  EXPECT_THAT(error({"--include", "localhost:0"}), HasSubstr("this host has none"));
  EXPECT_THAT(error({"--num-nodes", "2", "--num-gpus", "1"}), HasSubstr("needs --hostfile"));
  EXPECT_THAT(error({"--hostfile", "nosuch"}), HasSubstr("--hostfile: nosuch: open: No such"));
  EXPECT_THAT(error({"--launcher", "pdsh"}), HasSubstr("expected auto, torchrun"));
  EXPECT_THAT(error({"--num-gpsu", "2"}), HasSubstr("did you mean \"--num-gpus\"?"));
  EXPECT_THAT(run_sluice({"launch", "--num-gpus", "2"}).err, HasSubstr("missing PROGRAM"));
}

TEST_F(Launch, GivesRanksTheGraceWhenALogCannotBeWritten) {
  const std::string logs = directory_.file("logs");
  std::filesystem::create_directory(logs);
  std::filesystem::create_symlink("/dev/full", logs + "/rank-0.log");
  const std::string saved = directory_.file("saved");
  const ProgramResult result = launch({"--num-gpus", "2", "--log-dir", logs},
                                      "trap 'sleep 0.2; touch " + saved +
                                          ".$RANK; exit 0' TERM\n"
                                          "sleep 0.5; echo one; while true; do sleep 0.1; done\n");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank-0.log"), HasSubstr("No space left"),
                                HasSubstr("the ranks have 60 s to end")));
  EXPECT_THAT(result.out, HasSubstr("[rank 0] one\n"));
  EXPECT_TRUE(std::filesystem::exists(saved + ".0") && std::filesystem::exists(saved + ".1"));
}

// More than the 5 seconds that ranks have when another one failed.
TEST_F(Launch, GivesRanksTheGraceWhenTheReaderOfTheOutputIsGone) {
  const std::string saved = directory_.file("saved");
  const ProgramResult result =
      run_sluice({"launch", "--num-gpus", "1",
                  script("trap 'sleep 6; touch " + saved +
                         "; exit 0' TERM\necho one; while true; do sleep 0.1; done\n")},
                 {}, &write_without_reader);
  EXPECT_EQ(result.exit_code, 128 + SIGPIPE);
  EXPECT_TRUE(std::filesystem::exists(saved));
}

TEST_F(Launch, HearsSignalsWhenNobodyReadsItsOutput) {
  const ProgramResult result =
      interrupted({"--num-gpus", "1", "--grace", "0.2"},
                  std::string("trap '' TERM\n") + kManyLines +
                      "sleep 0.5; touch ready.$RANK; while true; do sleep 1; done\n",
                  1, {SIGTERM}, &write_to_nobody);
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_TRUE(all_are_gone());
}

// Rank 1 says that it was told to end, and goes on until the launcher is told.
TEST_F(Launch, EndsTheOthersOfAFailedRankWhenNobodyReadsItsOutput) {
  const ProgramResult result =
      interrupted({"--num-gpus", "2", "--grace", "0.2"},
                  std::string("if [ $RANK = 0 ]; then\n"
                              "while [ ! -e trapped ]; do sleep 0.05; done\n") +
                      kManyLines +
                      "touch ready.0; exit 3; fi\n"
                      "trap 'touch ready.1' TERM; touch trapped; while true; do sleep 0.1; done\n",
                  2, {SIGTERM}, &write_to_nobody);
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_TRUE(all_are_gone());
}

TEST_F(Launch, SaysItsEndAsJson) {
  // Rank 1 waits for rank 0's line: its failure ends rank 0.
  const ProgramResult result = launch({"--num-gpus", "2", "--json"},
                                      "echo $RANK; touch $0.$RANK\n"
                                      "until [ -e $0.0 ]; do sleep 0.01; done; exit $RANK\n");
  EXPECT_EQ(result.exit_code, 1);
  const Json::Value object = parse_json(last_line(result.out));
  EXPECT_EQ(object["ranks"], 2);
  EXPECT_EQ(object["exit_code"], 1);
  EXPECT_EQ(object["failed"]["rank"], 1);
  EXPECT_EQ(object["failed"]["last_lines"][0], "1");
  EXPECT_THAT(result.err, HasSubstr("[rank 0] 0\n"));
}

}  // namespace
}  // namespace sluice::test
