// Ranks of which one dies, is stopped, fails, skips a unit or has another size: all ranks end, and
// the last lines name the rank, the unit, and what each was doing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>

namespace sluice::zero {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  int exit_code = 0;
  std::string text;
  double seconds = 0;
};

// Three ranks; the limit of silence is 2 s. `flags`: of mpirun.
Outcome run(const std::string& how, const std::string& flags = "") {
  const std::string command = "SLUICE_RANK_TIMEOUT=2 timeout -k 5 60 " SLUICE_MPIRUN
                              " --oversubscribe --allow-run-as-root --bind-to none -n 3 " +
                              flags + " " SLUICE_FAULT_RANK " " + how + " 2>&1";
  const auto begin = std::chrono::steady_clock::now();
  Outcome outcome;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "no process", 0};
  std::array<char, 4096> block{};
  while (std::size_t count = std::fread(block.data(), 1, block.size(), pipe))
    outcome.text.append(block.data(), count);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

constexpr int kTimedOut = 124;  // of timeout(1)

void expect_ended(const Outcome& outcome) {
  EXPECT_NE(outcome.exit_code, 0) << outcome.text;
  EXPECT_NE(outcome.exit_code, kTimedOut) << outcome.text;
  EXPECT_LT(outcome.seconds, 45) << outcome.text;
}

TEST(MpiFaults, WithoutAFaultAllRanksAreDone) {
  const Outcome outcome = run("none");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 0 is done"), HasSubstr("rank 1 is done"),
                                  HasSubstr("rank 2 is done")));
}

TEST(MpiFaults, ARankThatIsStoppedIsNamedWithWhatEachWasDoing) {
  const Outcome outcome = run("stop");
  expect_ended(outcome);
  EXPECT_THAT(outcome.text,
              HasSubstr("cannot complete all_gather of unit h.3, 300000 bytes: rank 1 "
                        "(host "));
  EXPECT_THAT(outcome.text, HasSubstr("the last call of rank 1 here was all_gather of unit h.2"));
  EXPECT_THAT(outcome.text, HasSubstr("waits in all_gather of unit h.3"));
}

TEST(MpiFaults, ARankThatNeverJoinsEndsTheOthersWithOneLine) {
  const Outcome outcome = run("never_join");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.text;
  EXPECT_LT(outcome.seconds, 45) << outcome.text;
  const std::string line =
      "waits for the other ranks to join by MPI, and not all have come within 2 s";
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("error: rank 0 of 3 (host "), HasSubstr(line),
                                  HasSubstr("SLUICE_RANK_TIMEOUT")));
  EXPECT_EQ(outcome.text.find(line), outcome.text.rfind(line)) << outcome.text;
}

TEST(MpiFaults, ASignalEndsARankThatWaitsForTheOthersToJoin) {
  const Outcome outcome = run("never_join_and_stop");
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("stopped before all ranks had joined"));
}

// mpirun itself ends the others, unless it is told to let them go on.
TEST(MpiFaults, ARankThatDiesEndsTheRun) {
  const Outcome outcome = run("exit");
  expect_ended(outcome);
}

TEST(MpiFaults, ARankThatDiesIsNamedWhereMpirunLetsTheOthersGoOn) {
  const Outcome outcome = run("exit", "--enable-recovery");
  EXPECT_NE(outcome.exit_code, kTimedOut) << outcome.text;  // mpirun's own is 0 then
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("cannot complete all_gather of unit h.3"),
                                  HasSubstr("rank 1 (host "), HasSubstr("has not answered")));
}

TEST(MpiFaults, ARankThatFailsTellsTheOthersThatItHasLeft) {
  const Outcome outcome = run("fail");
  expect_ended(outcome);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("[1] the disk of rank 1 is full"),
                                  HasSubstr("rank 1 of 3 has left; rank 0 cannot complete"),
                                  HasSubstr("rank 1 of 3 has left; rank 2 cannot complete")));
}

TEST(MpiFaults, ARankThatSkipsAUnitIsNamedWithBothUnits) {
  const Outcome outcome = run("skip");
  expect_ended(outcome);
  EXPECT_THAT(outcome.text,
              HasSubstr("ranks disagree: rank 0 called all_gather of unit h.3, 300000 bytes; rank "
                        "1 called all_gather of unit h.4, 300000 bytes"));
}

TEST(MpiFaults, ARankWithAnotherSizeIsNamed) {
  const Outcome outcome = run("size");
  expect_ended(outcome);
  EXPECT_THAT(outcome.text, HasSubstr("rank 1 called all_gather of unit h.3, 600000 bytes"));
}

}  // namespace
}  // namespace sluice::zero
