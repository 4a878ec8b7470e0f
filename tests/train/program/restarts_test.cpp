// A supervisor that restarts the program at any moment, with --resume, before the old process is
// gone and sometimes several at once: the losses are those of an undisturbed run, and at any moment
// a whole state lies on the drive. SLUICE_RESTARTS sets the number of restarts of each case
// (default 4).

#include <gtest/gtest.h>
#include <sys/file.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <list>
#include <random>

#include "train_support.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

int restarts() {
  const char* const text = std::getenv("SLUICE_RESTARTS");
  return text != nullptr ? std::atoi(text) : 4;
}

// The processes that the supervisor has started and not yet seen the end of.
class Processes {
 public:
  void start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), sluice_program());
    running_.emplace_back(std::move(arguments));
  }
  void signal_all(int signal) const {
    for (const Process& process : running_) process.signal(signal);
  }
  void signal_one(std::size_t index, int signal) const {
    if (running_.empty()) return;
    const auto at = static_cast<std::ptrdiff_t>(index % running_.size());
    std::next(running_.begin(), at)->signal(signal);
  }
  // Forgets those that have ended. Each has done its work, found the directory in use, or was ended
  // by a signal.
  void reap() {
    std::erase_if(running_, [](Process& process) {
      if (process.runs()) return false;
      const int code = process.wait();
      EXPECT_TRUE(code == 0 || code == 4 || code == 143 || code == -SIGKILL || code == -SIGTERM)
          << "a process ended with " << code;
      return true;
    });
  }
  void wait_all() {
    for (; !running_.empty(); reap()) std::this_thread::sleep_for(milliseconds(5));
  }

 private:
  std::list<Process> running_;
};

class Restarts : public ::testing::Test {
 protected:
  // Checks the drive's files while all processes stand still. True once something is committed.
  bool check_copy(const Processes& processes, bool committed_before) {
    const std::string copy = folder_.path("copy");
    fs::remove_all(copy);
    fs::create_directory(copy);
    processes.signal_all(SIGSTOP);
    for (const std::string& part : {folder_.swap(), folder_.checkpoints()}) {
      if (fs::exists(part)) {
        fs::copy(part, copy + "/" + fs::path(part).filename().string(),
                 fs::copy_options::recursive);
      }
    }
    processes.signal_all(SIGCONT);
    bool committed = false;
    for (const char* part : {"swap", "checkpoints"}) {
      if (!fs::exists(copy + "/" + part)) continue;
      const ProgramResult whole = run_sluice({"nvme", "verify", copy + "/" + part});
      committed = committed || whole.exit_code == 0;
      EXPECT_EQ(whole.out.find("DAMAGED"), std::string::npos) << whole.out;
    }
    EXPECT_TRUE(committed || !committed_before) << "a state was there before, and is gone";
    return committed;
  }

  void restart_often(const TrainSetup& setup, unsigned seed) {
    const int steps = 3 * restarts() + 20;
    folder_.set(setup);
    ASSERT_EQ(folder_.train("undisturbed", steps).exit_code, 0);
    folder_.clear_swap();
    std::mt19937 random(seed);
    const auto pick = [&](int count) {
      return static_cast<int>(random() % static_cast<unsigned>(count));
    };
    Processes processes;
    bool committed = false;
    for (int i = 0; i < restarts(); ++i) {
      const int together = 1 + pick(3);
      for (int p = 0; p < together; ++p) {
        std::vector<std::string> more = {"--resume"};
        if (pick(2) == 0) more.insert(more.end(), {"--wait", "60"});
        processes.start(folder_.arguments("report", steps, more));
      }
      std::this_thread::sleep_for(milliseconds(200 + pick(2500)));
      if (i % 3 == 0) committed = check_copy(processes, committed);
      constexpr int kSignals[] = {SIGTERM, SIGKILL, 0};
      if (const int signal = kSignals[pick(3)]; signal != 0) processes.signal_one(random(), signal);
      processes.reap();
    }
    processes.signal_all(SIGTERM);
    processes.wait_all();
    const ProgramResult last = folder_.train("report", steps, {"--resume"});
    ASSERT_EQ(last.exit_code, 0) << last.err;
    EXPECT_EQ(column(folder_, "report", "step"), column(folder_, "undisturbed", "step"));
    EXPECT_EQ(column(folder_, "report", "loss"), column(folder_, "undisturbed", "loss"));
  }
  std::string checkpoint_keys(int every, int keep) const {
    return "\"checkpoint_dir\": \"" + folder_.checkpoints() +
           "\", \"checkpoint_every\": " + std::to_string(every) +
           ", \"keep\": " + std::to_string(keep) + ", ";
  }

  TrainFolder folder_;
};

TEST_F(Restarts, WithStatesOnNvme) {
  restart_often({}, 1);
}

TEST_F(Restarts, WithStatesInHostMemoryAndCheckpoints) {
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys = checkpoint_keys(2, 1);
  restart_often(setup, 2);
}

// Weights in host memory, states on NVMe, half of them in host memory too.
TEST_F(Restarts, WithStatesOfMixedTiers) {
  TrainSetup setup;
  setup.param_device = "cpu";
  setup.sluice_keys = R"("cache_bytes": "50%", "commit_every": 3, )" + checkpoint_keys(4, 2);
  restart_often(setup, 4);
}

TEST_F(Restarts, WithStatesOnNvmeCommittedSeldomAndCheckpointsMoreOften) {
  TrainSetup setup;
  setup.sluice_keys = "\"commit_every\": 10, " + checkpoint_keys(2, 2);
  restart_often(setup, 3);
}

// The run that wrote checkpoint 18 had committed step 10: step 18 is what is gone on from, and
// nothing is removed that the next run needs.
TEST_F(Restarts, ACheckpointNewerThanTheSwapDirectoryIsGoneOnFrom) {
  TrainSetup setup;
  setup.sluice_keys = "\"commit_every\": 10, " + checkpoint_keys(2, 1);
  folder_.set(setup);
  ASSERT_EQ(folder_.train("undisturbed", 24).exit_code, 0);
  folder_.clear_swap();
  // The line of step 19 is written before its checkpoint would be.
  ASSERT_TRUE(kill_after_line(folder_.arguments("report", 1000),
                              folder_.path("report") + "/steps.jsonl", 19, milliseconds(0)));
  ASSERT_TRUE(fs::exists(folder_.checkpoints() + "/step-00000018/manifest.json"));
  const ProgramResult rest = folder_.train("report", 24, {"--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_NE(rest.err.find("resumed from step 18 in " + folder_.checkpoints()), std::string::npos)
      << rest.err;
  EXPECT_EQ(column(folder_, "report", "loss"), column(folder_, "undisturbed", "loss"));
  EXPECT_TRUE(fs::exists(folder_.checkpoints() + "/step-00000024/manifest.json"));
}

// Killed after its last checkpoint and before its last commit: nothing is left to train, and the
// swap directory is whole in the end.
TEST_F(Restarts, AFinishedRunIsCommittedFromItsLastCheckpoint) {
  for (const char* durability : {"process", "none"}) {
    SCOPED_TRACE(durability);
    folder_.clear_swap();
    TrainSetup setup;
    setup.sluice_keys =
        "\"durability\": \"" + std::string(durability) + "\", " + checkpoint_keys(2, 1);
    folder_.set(setup);
    ASSERT_EQ(folder_.train("report", 4).exit_code, 0);
    fs::remove(folder_.swap() + "/manifest.json");
    const ProgramResult again = folder_.train("report", 4, {"--resume"});
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(run_sluice({"nvme", "verify", folder_.swap()}).exit_code, 0);
    EXPECT_EQ(folder_.train("report", 5, {"--resume"}).exit_code, 0);
  }
}

// Killed after its last commit and before its last checkpoint had its name.
TEST_F(Restarts, AFinishedRunGetsItsLastCheckpointFromTheSwapDirectory) {
  TrainSetup setup;
  setup.sluice_keys = checkpoint_keys(2, 1);
  folder_.set(setup);
  ASSERT_EQ(folder_.train("report", 4).exit_code, 0);
  const std::string last = folder_.checkpoints() + "/step-00000004";
  const std::string states = file_text(last + "/states.0.swap");
  fs::rename(last, last + ".tmp");
  const ProgramResult again = folder_.train("report", 4, {"--resume"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(file_text(last + "/states.0.swap") == states);
  const auto written_at = fs::last_write_time(last + "/manifest.json");
  const ProgramResult third = folder_.train("report", 4, {"--resume"});
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_EQ(fs::last_write_time(last + "/manifest.json"), written_at) << "it is there";
  // A step that is not due has none.
  ASSERT_EQ(folder_.train("report", 5, {"--resume"}).exit_code, 0);
  EXPECT_EQ(folder_.train("report", 5, {"--resume"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_.checkpoints() + "/step-00000005"));
}

// Two damaged slots, and a checkpoint of the step they hold.
TEST_F(Restarts, ADamagedSwapDirectoryNamesTheCheckpointOfItsStep) {
  TrainSetup setup;
  setup.sluice_keys = checkpoint_keys(3, 1);
  folder_.set(setup);
  ASSERT_EQ(folder_.train("report", 3).exit_code, 0);
  for (const char* slot : {"/states.0.swap", "/states.1.swap"}) {
    std::fstream file(folder_.swap() + slot, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(50000);
    file << "damage";
  }
  expect_refused(folder_.train("report", 5, {"--resume"}), 4,
                 {folder_.checkpoints() + "/step-00000003", "sluice nvme clean " + folder_.swap()});
  ASSERT_EQ(run_sluice({"nvme", "clean", folder_.swap(), "--committed"}).exit_code, 0);
  EXPECT_EQ(folder_.train("report", 5, {"--resume"}).exit_code, 0);
}

TEST_F(Restarts, ASwapDirectoryThatCannotBeReadNamesTheNewestCheckpoint) {
  TrainSetup setup;
  setup.sluice_keys = checkpoint_keys(3, 1);
  folder_.set(setup);
  ASSERT_EQ(folder_.train("report", 3).exit_code, 0);
  const std::string manifest = folder_.swap() + "/manifest.json";
  write_file(manifest, file_text(manifest).substr(0, 200));
  expect_refused(
      folder_.train("report", 5, {"--resume"}), 4,
      {manifest, folder_.checkpoints() + "/step-00000003", "sluice nvme clean " + folder_.swap()});
  ASSERT_EQ(run_sluice({"nvme", "clean", folder_.swap(), "--committed"}).exit_code, 0);
  EXPECT_EQ(folder_.train("report", 5, {"--resume"}).exit_code, 0);
}

// Another process has the directories: it is named, and nothing is read before it has ended.
TEST_F(Restarts, ARunThatIsAtWorkIsNamedBeforeItsFilesAreRead) {
  folder_.set({});
  ASSERT_EQ(folder_.train("report", 2).exit_code, 0);
  write_file(folder_.swap() + "/manifest.json", "torn");  // as read in the middle of something
  const int fd = ::open((folder_.swap() + "/lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--resume"},
        std::vector<std::string>{"--resume", "--wait", "1"}}) {
    const ProgramResult result = folder_.train("report", 4, more);
    expect_refused(result, 4, {"is in use by another", folder_.swap()});
    EXPECT_EQ(result.err.find("manifest"), std::string::npos) << result.err;
  }
  expect_refused(run_sluice({"export", folder_.swap(), "--out", folder_.path("w.safetensors")}), 4,
                 {"is in use by another"});
  ::close(fd);
}

TEST_F(Restarts, ASignalEndsTheWaitForARunAndIsTheExitCode) {
  folder_.set({});
  ASSERT_EQ(folder_.train("report", 2).exit_code, 0);
  const int fd = ::open((folder_.swap() + "/lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(run_and_signal(folder_.arguments("report", 4, {"--resume", "--wait", "60"}),
                           milliseconds(2500), SIGTERM),
            143);
  ::close(fd);
}

// Steps that are trained are not lost for a checkpoint that cannot be written, and the exit code
// says that it is missing.
TEST_F(Restarts, ARunWithoutRoomForCheckpointsEndsWithExitCode4AndItsReport) {
  TrainSetup setup;
  setup.sluice_keys = checkpoint_keys(3, 1);
  folder_.set(setup);
  Process program = start_sluice(folder_.arguments("report", 40));
  ASSERT_TRUE(wait_for_lines(program, folder_.path("report") + "/steps.jsonl", 1));
  fs::remove_all(folder_.checkpoints());
  write_file(folder_.checkpoints(), "a file in its place");
  EXPECT_EQ(program.wait(), 4);
  EXPECT_EQ(column(folder_, "report", "loss").size(), 40U);
  const std::string report = folder_.report_text("report");
  EXPECT_NE(report.find("checkpoints could not be written"), std::string::npos) << report;
  EXPECT_NE(report.find("\"committed_step\":40"), std::string::npos) << report;
  fs::remove(folder_.checkpoints());
}

}  // namespace
}  // namespace sluice::test
