// One rank of `sluice train` is killed, or has a full disk, at any of its operations on files, most
// of which are commits. All ranks end, the output names the rank, and a resumed run has the losses
// and weights of an undisturbed one, on another number of ranks too. SLUICE_RANK_FAULTS sets the
// number of faults of each kind and each case (default 2), SLUICE_RANK_FAULTS_SEED their seed;
// SLUICE_RANK_FAULTS_SHOW=1 prints each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>

#include "train/ranks/ranks_support.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 6;
constexpr double kMostSecondsToTheEnd = 30;
constexpr double kMostSecondsOfARun = 180;

unsigned long number_from(const char* variable, unsigned long otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoul(text, nullptr, 10);
}

// A fault of one rank, before its operation number `at`. 0: nothing.
struct Fault {
  const char* kind = "kill";
  int rank = 0;
  std::size_t at = 0;
};

struct Ending {
  int exit_code = -1;
  std::string text;
  std::string operation;  // that was hit, "write .../ranks.json.tmp"; empty: none
  double seconds = 0;     // from the fault to the end of mpirun
};

class RankFaults : public ::testing::Test {
 protected:
  // The run on another number of ranks. One rank takes the micro-batches of `ranks_` ranks.
  RanksCase with_ranks(int ranks) const {
    RanksCase of{.ranks = ranks, .stage = 3, .offload = offload_, .bf16 = false};
    if (ranks_ == 2) of.clipping = 0.5;  // without clipping updates begin during backward
    if (ranks == 1) of.accumulation = ranks_;
    of.sluice_keys = R"(, "io": {"backend": "threads"})";
    if (offload_ == "cpu") of.sluice_keys += R"(, "checkpoint_every": 2, "keep": 1)";
    of.exported = true;
    return of;
  }
  std::string states() const {
    return run_.file(offload_ == "cpu" ? "run.checkpoints" : "run.nvme");
  }
  std::vector<std::string> losses() const { return run_.values("run", "loss"); }

  // The exported weights of the committed step.
  std::string weights() const { return run_.weights(with_ranks(ranks_), "run"); }
  // The newest step that is whole on the drive; 0: none.
  std::int64_t committed_step() const {
    const ProgramResult whole = run_sluice({"nvme", "verify", "--json", states()});
    EXPECT_EQ(whole.out.find("\"ok\":false"), std::string::npos) << whole.out;
    const std::string mark = "\"step\":";
    std::int64_t step = 0;
    if (whole.exit_code != 0) return 0;
    for (auto at = whole.out.find(mark); at != std::string::npos; at = whole.out.find(mark, at + 1))
      step = std::max<std::int64_t>(step, std::atoll(whole.out.c_str() + at + mark.size()));
    return step;
  }

  void clear() {
    for (const char* part : {"run.nvme", "run.checkpoints", "run.report"})
      fs::remove_all(run_.file(part));
  }
  // Each rank writes its process id, then becomes the program with the fault injector.
  std::vector<std::string> wrapper(const Fault& fault) const {
    const std::string rank = "$OMPI_COMM_WORLD_RANK";
    return {"/bin/sh", "-c",
            "echo $$ > '" + run_.file("pid") + "'." + rank + "; at=0; if [ " + rank + " = " +
                std::to_string(fault.rank) + " ]; then at=" + std::to_string(fault.at) +
                "; fi; exec env LD_PRELOAD=" SLUICE_FAULT_INJECTOR " SLUICE_FAULT=" + fault.kind +
                " SLUICE_FAULT_AT=$at SLUICE_FAULT_ROOT='" +
                fs::path(run_.file("run")).parent_path().string() + "' SLUICE_FAULT_LOG='" +
                run_.file("log") + "'." + rank + " \"$@\"",
            "rank"};
  }
  std::string log_of(int rank) const { return file_text(run_.file("log." + std::to_string(rank))); }

  // Runs from the beginning.
  Ending run(const Fault& fault) {
    clear();
    for (int rank = 0; rank < ranks_; ++rank) fs::remove(run_.file("log." + std::to_string(rank)));
    Process program = start_ranks(
        RanksRun::line(ranks_, run_.arguments(with_ranks(ranks_), "run", kSteps), wrapper(fault)),
        run_.file("output"));
    Ending ending;
    std::optional<Clock::time_point> hit;
    std::optional<int> code;
    for (const auto begin = Clock::now(); !code;) {
      code = program.wait(0.02);
      const std::string log = log_of(fault.rank);
      if (const auto mark = log.find(" <- "); !hit && mark != std::string::npos) {
        hit = Clock::now();
        const auto line = log.rfind('\n', mark) + 1;
        ending.operation = log.substr(line, mark - line);
      }
      if (Clock::now() - begin > std::chrono::duration<double>(kMostSecondsOfARun)) break;
    }
    EXPECT_TRUE(code.has_value()) << "the run does not end";
    ending.exit_code = code.value_or(-1);
    ending.text = program.text();
    if (hit) ending.seconds = std::chrono::duration<double>(Clock::now() - *hit).count();
    for (int rank = 0; rank < ranks_; ++rank) expect_gone(rank);
    return ending;
  }
  void expect_gone(int rank) const {
    const pid_t process = std::stoi(file_text(run_.file("pid." + std::to_string(rank))));
    for (int i = 0; i < 500 && ::kill(process, 0) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_NE(::kill(process, 0), 0) << "rank " << rank << " still runs";
  }

  ProgramResult resume(int ranks, std::int64_t steps) {
    std::vector<std::string> arguments =
        run_.arguments(with_ranks(ranks), "run", static_cast<int>(steps));
    arguments.push_back("--resume");
    return run_program(RanksRun::line(ranks, arguments));
  }
  void expect_resumed(int ranks, std::int64_t steps) {
    const ProgramResult result = resume(ranks, steps);
    EXPECT_EQ(result.exit_code, 0) << "resumed on " << ranks << " ranks\n" << result.err;
  }

  // An undisturbed run: its losses and weights, and the operations of each rank.
  void observe() {
    const Ending whole = run({});
    ASSERT_EQ(whole.exit_code, 0) << whole.text;
    losses_ = losses();
    weights_ = weights();
    ASSERT_EQ(losses_.size(), static_cast<std::size_t>(kSteps));
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::string log = log_of(rank);
      operations_.push_back(static_cast<std::size_t>(std::count(log.begin(), log.end(), '\n')));
      ASSERT_GT(operations_.back(), 0U) << "the injector sees no operation of rank " << rank;
    }
  }
  Fault draw(const char* kind, std::mt19937& random) const {
    Fault fault{.kind = kind, .rank = static_cast<int>(random() % static_cast<unsigned>(ranks_))};
    fault.at = 1 + random() % operations_[static_cast<std::size_t>(fault.rank)];
    return fault;
  }

  void expect_ended(const Fault& fault, const Ending& ending) {
    EXPECT_LT(ending.seconds, kMostSecondsToTheEnd);
    EXPECT_EQ(ending.text.find("terminate called"), std::string::npos);
    if (ending.exit_code == 0) {
      // A full disk under files that a run can do without: an old checkpoint that is removed.
      EXPECT_NE(fault.kind, std::string("kill"));
      return;
    }
    EXPECT_THAT(ending.text, HasSubstr("rank " + std::to_string(fault.rank)));
  }

  // Goes on with the states as they lie there. Two times of three, other numbers of ranks have them
  // in between.
  void expect_kept(std::size_t number, const Ending& ending) {
    const auto written = static_cast<std::int64_t>(losses().size());
    const std::int64_t committed = committed_step();
    // The line of a step is written when the step before is committed.
    const std::int64_t sure = offload_ == "nvme" ? written - 1 : 0;
    EXPECT_GE(committed, sure) << "a step that was committed is lost";
    EXPECT_TRUE(ending.exit_code != 0 || losses() == losses_) << "the run did not go on";
    if (number % 3 != 0 && committed > 0 && offload_ == "nvme") {
      const std::string before = weights();
      expect_resumed(number % 3 == 1 ? 1 : 5 - ranks_, committed);
      EXPECT_TRUE(weights() == before) << "another number of ranks has other states";
    }
    // The mean over two ranks is exact, so that one rank with their micro-batches has their bits.
    expect_resumed(number % 3 == 1 && ranks_ == 2 ? 1 : ranks_, kSteps);
    EXPECT_EQ(losses(), losses_);
    EXPECT_TRUE(weights() == weights_) << "the exported weights differ";
  }

  void fail_often(const char* kind, const std::string& offload, int ranks) {
    offload_ = offload;
    ranks_ = ranks;
    const unsigned long seed = number_from("SLUICE_RANK_FAULTS_SEED", 1);
    std::mt19937 random(static_cast<unsigned>(seed));
    observe();
    if (HasFatalFailure()) return;
    const unsigned long count = number_from("SLUICE_RANK_FAULTS", 2);
    std::map<int, int> codes;
    double longest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Fault fault = draw(kind, random);
      const Ending ending = run(fault);
      SCOPED_TRACE(std::string(kind) + " on rank " + std::to_string(fault.rank) + " of " +
                   std::to_string(ranks) + " at call " + std::to_string(fault.at) + " of " +
                   std::to_string(operations_[static_cast<std::size_t>(fault.rank)]) + " (seed " +
                   std::to_string(seed) + ", number " + std::to_string(i) +
                   "): " + ending.operation + "; exit " + std::to_string(ending.exit_code) + "\n" +
                   ending.text);
      if (ending.operation.empty()) {
        // This time the rank made fewer calls than in the undisturbed run.
        EXPECT_EQ(ending.exit_code, 0);
        continue;
      }
      if (std::getenv("SLUICE_RANK_FAULTS_SHOW") != nullptr)
        std::cout << "rank " << fault.rank << ": " << ending.operation << ", exit "
                  << ending.exit_code << " after " << ending.seconds << " s\n";
      ++codes[ending.exit_code];
      longest = std::max(longest, ending.seconds);
      expect_ended(fault, ending);
      expect_kept(i, ending);
    }
    std::cout << count << " faults, seed " << seed << ", at most " << longest
              << " s to the end of all ranks:";
    for (const auto& [code, times] : codes) std::cout << " " << times << " ended with " << code;
    std::cout << "\n";
  }

  RanksRun run_;
  std::string offload_;
  int ranks_ = 2;
  std::vector<std::string> losses_;
  std::string weights_;
  std::vector<std::size_t> operations_;  // of each rank
};

TEST_F(RankFaults, ARankIsKilledWithStatesOnNvme) {
  fail_often("kill", "nvme", 2);
}

TEST_F(RankFaults, ARankOfThreeIsKilledWithStatesOnNvme) {
  fail_often("kill", "nvme", 3);
}

TEST_F(RankFaults, ARankIsKilledWithStatesInHostMemoryAndCheckpoints) {
  fail_often("kill", "cpu", 2);
}

TEST_F(RankFaults, TheDiskOfARankIsFullWithStatesOnNvme) {
  fail_often("ENOSPC", "nvme", 2);
}

TEST_F(RankFaults, TheDiskOfARankIsFullWithStatesInHostMemoryAndCheckpoints) {
  fail_often("ENOSPC", "cpu", 3);
}

}  // namespace
}  // namespace sluice::test
