// `sluice launch` around mpirun, and the lines for several hosts. Scripts named mpirun and srun
// stand in where only the line matters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MpiLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/usr/bin/mpirun")) GTEST_SKIP() << "mpirun is not installed";
  }
  std::string script(const std::string& name, const std::string& body) const {
    std::string path = directory_.file(name);
    write_file(path, "#!/bin/sh\n" + body);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  ProgramResult launch(std::vector<std::string> flags, const std::string& body) const {
    flags.insert(flags.begin(), {"launch", "--launcher", "mpirun", "--num-gpus", "2"});
    flags.push_back(script("rank.sh", body));
    return run_sluice(flags);
  }
  TempDir directory_;
};

TEST_F(MpiLaunch, StartsRanksThatMpiNumbers) {
  const ProgramResult result =
      launch({}, "echo $OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE$PMI_RANK$PMI_SIZE\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank 0] 0"), HasSubstr("[rank 1] 1")));
}

TEST_F(MpiLaunch, NamesTheRankThatFailedFirst) {
  const ProgramResult result =
      launch({}, "[ $OMPI_COMM_WORLD_RANK = 1 ] && { echo no memory >&2; exit 7; }; sleep 300\n");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 of 2 exited with code 7"),
                                HasSubstr("  no memory\n"), Not(HasSubstr("rank 0 of 2"))));
}

TEST_F(MpiLaunch, BindsRanksToTheirCoresAndWritesLogs) {
  const ProgramResult result =
      launch({"--bind-cores-to-rank", "--log-dir", directory_.file("logs")},
             "grep Cpus_allowed_list /proc/self/status\n");
  if (result.err.find("2 ranks need a core each") != std::string::npos)
    GTEST_SKIP() << "this machine has one core";
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string first = file_text(directory_.file("logs/rank-0.log"));
  const std::string second = file_text(directory_.file("logs/rank-1.log"));
  EXPECT_THAT(first, HasSubstr("Cpus_allowed_list:"));
  EXPECT_THAT(second, HasSubstr("Cpus_allowed_list:"));
  EXPECT_NE(first, second);
}

TEST_F(MpiLaunch, SaysThatAProgramIsNotThere) {
  const ProgramResult result =
      run_sluice({"launch", "--launcher", "mpirun", "--num-gpus", "2", "./absent"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("./absent: cannot be executed"));
}

// mpirun gives ranks a second between SIGTERM and SIGKILL. Ranks of launch get the whole grace.
TEST_F(MpiLaunch, GivesRanksTheGraceToEnd) {
  const std::string ready = directory_.file("ready");
  const std::string body =
      "trap 'sleep 3; echo finished; exit 143' TERM\n"
      "[ $OMPI_COMM_WORLD_RANK = 0 ] && touch " +
      ready + "\nwhile true; do sleep 0.1; done\n";
  const std::string rank = script("rank.sh", body);
  // A shell starts launch, interrupts it once it is ready, and ends with its exit code.
  const std::string shell =
      "\"$0\" launch --launcher mpirun --num-gpus 2 \"$1\" & pid=$!\n"
      "while [ ! -e \"$2\" ]; do sleep 0.1; done; sleep 0.5; kill -TERM $pid; wait $pid";
  const ProgramResult result = run_program({"/bin/sh", "-c", shell, sluice_program(), rank, ready});
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank 0] finished"), HasSubstr("[rank 1] finished")));
}

// Without time to clear up, mpirun would leave its folder, and shared memory of its ranks.
TEST_F(MpiLaunch, ASecondSignalLeavesNothingOfMpirun) {
  const std::string temporary = directory_.file("tmp");
  std::filesystem::create_directory(temporary);
  const std::string ready = directory_.file("ready");
  const std::string rank = script(
      "rank.sh", "trap '' TERM\n[ $OMPI_COMM_WORLD_RANK = 0 ] && touch " + ready + "\nsleep 300\n");
  const std::string shell =
      "\"$0\" launch --launcher mpirun --num-gpus 2 \"$1\" & pid=$!\n"
      "while [ ! -e \"$2\" ]; do sleep 0.1; done; sleep 0.5; ls \"$TMPDIR\"; kill -TERM $pid\n"
      "sleep 0.5; kill -TERM $pid; wait $pid";
  const ProgramResult result =
      run_program({"/bin/sh", "-c", shell, sluice_program(), rank, ready}, {{"TMPDIR", temporary}});
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_THAT(result.out, HasSubstr("ompi.")) << "mpirun has its folder elsewhere";
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

// Programs of these names come first in PATH.
class LaunchLines : public MpiLaunch {
 protected:
  void SetUp() override {}
  Environment first_in_path() const { return {{"PATH", directory_.file("") + ":/usr/bin:/bin"}}; }
  std::string hosts(const std::string& text = "one slots=2\ntwo slots=4\n") const {
    write_file(directory_.file("hosts"), text);
    return directory_.file("hosts");
  }
  // launch --run of `program`, which gets SIGTERM when an mpirun with these traps is there.
  ProgramResult terminated(const std::string& traps, const std::string& program) {
    const std::string ready = directory_.file("ready");
    script("mpirun", traps + "touch " + ready + "\nwhile true; do sleep 0.1; done\n");
    const std::string shell = "\"$0\" launch --launcher mpirun --hostfile \"$1\" --run " + program +
                              " & pid=$!\nwhile [ ! -e \"$2\" ]; do sleep 0.1; done; "
                              "kill -TERM $pid; wait $pid";
    return run_program({"/bin/sh", "-c", shell, sluice_program(), hosts(), ready}, first_in_path());
  }
};

TEST_F(LaunchLines, SluiceTrainIsStartedByMpirun) {
  script("mpirun", "echo called \"$@\"\n");
  const ProgramResult result = run_sluice(
      {"launch", "--num-gpus", "2", "sluice", "train", "--config", "c"}, first_in_path());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[mpirun] called -n 2 "), HasSubstr("launch --as-rank "),
                                HasSubstr(" sluice train --config c\n")));
  EXPECT_THAT(result.err, HasSubstr("rank 0 of 2 never began: mpirun exited with code 0"));
}

TEST_F(LaunchLines, SayWhichPackageIsMissing) {
  const ProgramResult result =
      run_sluice({"launch", "--launcher", "mpirun", "/bin/true"}, {{"PATH", directory_.file("")}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("mpirun is not in PATH: install openmpi-bin"));
}

TEST_F(LaunchLines, OfTorchrunAreOneForEachHost) {
  const ProgramResult result = run_sluice({"launch", "--hostfile", hosts(), "--exclude", "two:1",
                                           "--log_dir", "logs", "train.py", "--lr", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "# on one\n"
            "torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2 --master-addr=one "
            "--master-port=29500 --log-dir=logs --tee=3 train.py --lr 1\n"
            "# on two\n"
            "env CUDA_VISIBLE_DEVICES=0,2,3 torchrun --nnodes=2 --node-rank=1 --nproc-per-node=3 "
            "--master-addr=one --master-port=29500 --log-dir=logs --tee=3 train.py --lr 1\n");
}

TEST_F(LaunchLines, OfMpirunHasAPartForEachHost) {
  const ProgramResult result =
      run_sluice({"launch", "--launcher", "mpirun", "--hostfile", hosts(), "--include",
                  "one@two:0,2", "--master_port", "1234", "./a b", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "mpirun --bind-to none --tag-output -x MASTER_ADDR=one -x MASTER_PORT=1234 "
            "-H one:2 -n 2 './a b' --json : "
            "-H two:2 -n 2 env CUDA_VISIBLE_DEVICES=0,2 './a b' --json\n");
}

TEST_F(LaunchLines, OfTorchrunHaveIpv6AddressesAndThoseOfMpirunHaveNone) {
  const std::string path = directory_.file("addresses");
  write_file(path, "fd77::2 slots=1\nfd77::3 slots=1\n");
  const ProgramResult torchrun = run_sluice({"launch", "--hostfile", path, "train.py"});
  EXPECT_EQ(torchrun.exit_code, 0) << torchrun.err;
  EXPECT_THAT(torchrun.out, HasSubstr("--master-addr=fd77::2 --master-port=29500"));
  const ProgramResult mpirun =
      run_sluice({"launch", "--hostfile", path, "--launcher", "mpirun", "./program"});
  EXPECT_EQ(mpirun.exit_code, 2) << mpirun.out;
  EXPECT_THAT(mpirun.err, HasSubstr("mpirun starts no ranks on an IPv6 address (fd77::2): give"));
}

TEST_F(LaunchLines, OfSrunNeedsEqualHosts) {
  const ProgramResult equal = run_sluice({"launch", "--launcher", "srun", "--hostfile", hosts(),
                                          "--num_gpus", "2", "--master_addr", "a", "./program"});
  EXPECT_EQ(equal.out,
            "srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --kill-on-bad-exit=1 --label "
            "--nodelist=one,two --export=ALL,MASTER_PORT=29500,MASTER_ADDR=a ./program\n");
  const ProgramResult unequal =
      run_sluice({"launch", "--launcher", "srun", "--hostfile", hosts(), "./program"});
  EXPECT_EQ(unequal.exit_code, 2);
  EXPECT_THAT(unequal.err, HasSubstr("as many ranks on each host"));
}

TEST_F(LaunchLines, OfASlurmJobNeedNoHostfile) {
  const ProgramResult result =
      run_sluice({"launch", "--num-gpus", "4", "./program"}, {{"SLURM_JOB_NUM_NODES", "3"}});
  EXPECT_EQ(result.out,
            "srun --nodes=3 --ntasks=12 --ntasks-per-node=4 --kill-on-bad-exit=1 --label "
            "--export=ALL,MASTER_PORT=29500 ./program\n");
}

TEST_F(LaunchLines, AreRunWhenAskedFor) {
  script("mpirun", "echo running \"$@\"; exit 9\n");
  const ProgramResult result =
      run_sluice({"launch", "--launcher", "mpirun", "--hostfile", hosts(), "--run", "./program"},
                 first_in_path());
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_THAT(result.out, ::testing::StartsWith("running --bind-to none"));
  const ProgramResult torchrun = run_sluice({"launch", "--hostfile", hosts(), "--run", "train.py"});
  EXPECT_EQ(torchrun.exit_code, 2);
  EXPECT_THAT(torchrun.err, HasSubstr("torchrun is started on each host"));
}

// mpirun kills its ranks a second after SIGTERM. It hands SIGUSR1 on, and `sluice train` ends.
TEST_F(LaunchLines, HandTheirSignalToTheRanksOfTraining) {
  const ProgramResult result = terminated(
      "trap 'echo killed' TERM\ntrap 'sleep 1; echo finished; exit 138' USR1\n", "sluice train");
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_EQ(result.out, "finished\n");
  EXPECT_THAT(result.err, HasSubstr("SIGTERM: passed on to the ranks, which have 60 s to end"));
}

// Nothing is known of another program: it gets the signal itself, and the line promises no time.
TEST_F(LaunchLines, PassTheSignalOfOtherProgramsToMpirun) {
  const ProgramResult result = terminated("trap 'echo killed; exit 143' TERM\n", "./program");
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_EQ(result.out, "killed\n");
  EXPECT_THAT(result.err,
              HasSubstr("SIGTERM: passed on to mpirun, which may end its ranks within a second;"));
}

TEST_F(LaunchLines, RefuseCoresOfOtherHosts) {
  const ProgramResult result =
      run_sluice({"launch", "--hostfile", hosts(), "--bind-cores-to-rank", "train.py"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--bind-cores-to-rank is for ranks of this host"));
}

TEST_F(LaunchLines, AreAnObjectWithJson) {
  const ProgramResult result = run_sluice({"launch", "--json", "--hostfile", hosts(), "train.py"});
  const Json::Value object = parse_json(last_line(result.out));
  EXPECT_EQ(object["ranks"], 6);
  EXPECT_EQ(object["lines"][1]["host"], "two");
  EXPECT_EQ(object["lines"][1]["argv"][0], "torchrun");
}

}  // namespace
}  // namespace sluice::test
