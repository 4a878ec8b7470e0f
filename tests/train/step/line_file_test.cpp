// steps.jsonl and the rows of monitors as a resumed run finds them: no whole line of a step that
// counts is dropped, and a damaged file is put aside.

#include "record/line_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include "captured_log.hpp"
#include "file_text.hpp"
#include "in_child.hpp"
#include "record/step_lines.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "soft_limit.hpp"
#include "temp_dir.hpp"

namespace sluice::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The number under which this process holds `path` open.
unsigned descriptor_of(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) == path)
      return static_cast<unsigned>(std::stoul(entry.path().filename()));
  }
  throw std::runtime_error(path + " is not open");
}

class ResumedLines : public ::testing::Test {
 protected:
  static std::string line_of(std::int64_t step) {
    StepRecord record;
    record.step = step;
    return to_json_line(record) + "\n";
  }
  static std::string lines_of(const std::vector<std::int64_t>& steps) {
    std::string text;
    for (const std::int64_t step : steps) text += line_of(step);
    return text;
  }
  void write(const std::string& text) const { test::write_file(steps_, text); }
  // Lines of steps 1 to 4, the third of which is damaged. Returns the text.
  std::string write_a_damaged_one() const {
    const std::string text = lines_of({1, 2}) + "X\n" + lines_of({4});
    write(text);
    return text;
  }
  // A run that resumes after `committed` steps takes another one. Returns what it says.
  std::vector<std::string> resume(std::int64_t committed) const {
    const test::CapturedLog log;
    StepLines lines(dir_.path(), {}, committed, 1);
    StepRecord record;
    record.step = committed + 1;
    lines.append(record);
    lines.finish();
    std::vector<std::string> said;
    for (const auto& message : log.messages()) said.push_back(message.text);
    return said;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path()))
      paths.push_back(entry.path());
    std::ranges::sort(paths);
    return paths;
  }

  test::TempDir dir_;
  const std::string steps_ = dir_.file("steps.jsonl");
  const std::string aside_ = dir_.file("steps.1.jsonl");
  const std::string draft_ = dir_.file("steps.jsonl.tmp");
};

TEST_F(ResumedLines, WholeOnesBehindADamagedOneStay) {
  constexpr auto kPrivate = std::filesystem::perms{0600};
  std::string cut_number = line_of(4);
  cut_number[8] = '9';  // as a step that is not committed
  std::string zeros = line_of(4);
  zeros.replace(20, 8, 8, '\0');
  for (const std::string& damaged :
       {"X" + line_of(4).substr(1), cut_number, zeros, std::string(line_of(4).size(), '\0') + "\n",
        line_of(4).substr(0, 30) + "\n"}) {
    const std::string before = lines_of({1, 2, 3}) + damaged + lines_of({5, 6, 7, 8, 9});
    write(before);
    std::filesystem::permissions(steps_, kPrivate);
    EXPECT_THAT(resume(8), ElementsAre(AllOf(
                               HasSubstr(steps_ + ": line 4 is damaged: the file is now " + aside_),
                               HasSubstr("committed steps are missing: 4"))));
    EXPECT_EQ(test::file_text(steps_), lines_of({1, 2, 3, 5, 6, 7, 8, 9}));
    EXPECT_EQ(test::file_text(aside_), before);
    EXPECT_EQ(std::filesystem::status(steps_).permissions(), kPrivate);
    std::filesystem::remove(aside_);
    EXPECT_THAT(resume(9), IsEmpty()) << "said once";
  }
}

TEST_F(ResumedLines, DamageThatTakesTheLastOnesIsTold) {
  const std::string zeros(5000, '\0');
  for (const std::string& end : {zeros, line_of(4).substr(0, 40), zeros + "\n" + zeros}) {
    write(lines_of({1, 2, 3}) + end);
    EXPECT_THAT(resume(8), ElementsAre(AllOf(HasSubstr("line 4 is damaged"), HasSubstr(aside_),
                                             HasSubstr("steps are missing: 4 to 8"))));
    EXPECT_EQ(test::file_text(steps_), lines_of({1, 2, 3, 9}));
    EXPECT_EQ(test::file_text(aside_), lines_of({1, 2, 3}) + end);
    std::filesystem::remove(aside_);
  }
  write(zeros);
  EXPECT_THAT(resume(8), ElementsAre(HasSubstr("steps are missing: 1 to 8")));
  EXPECT_EQ(test::file_text(aside_), zeros);
}

TEST_F(ResumedLines, AFullDiskLosesNoWholeOne) {
  std::string before = lines_of({1, 2, 3, 4, 5, 6, 7, 8});
  before[line_of(1).size()] = 'X';
  write(before);
  {
    const test::CapturedLog log;
    const test::FileLimit limit(before.size() / 2);
    EXPECT_THROW(StepLines(dir_.path(), {}, 8, 1), IoError);
    EXPECT_TRUE(log.contains(steps_ + ": line 2 is damaged, and the file stays as it is"));
  }
  EXPECT_EQ(test::file_text(steps_), before);
  EXPECT_FALSE(std::filesystem::exists(draft_));
  EXPECT_THAT(resume(8), ElementsAre(AllOf(HasSubstr("the file is now " + aside_),
                                           HasSubstr("committed steps are missing: 2"))));
  EXPECT_EQ(test::file_text(steps_), lines_of({1, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(test::file_text(aside_), before);
}

TEST_F(ResumedLines, AnErrorBetweenTheFilesLeavesTheDamagedOneAlone) {
  const std::string before = write_a_damaged_one();
  const std::string said = test::run_in_child([&]() -> std::string {
    const test::CapturedLog log;
    test::deny(__NR_rename, EIO);
    try {
      StepLines(dir_.path(), {}, 4, 1);
    } catch (const IoError&) {
      return log.contains("line 3 is damaged, and the file stays as it is") ? "told" : "not told";
    }
    return "no error";
  });
  EXPECT_EQ(said, "told");
  EXPECT_EQ(test::file_text(steps_), before);
  EXPECT_THAT(files(), ElementsAre(steps_));
}

TEST_F(ResumedLines, ADamagedOneIsPutAsideWhereThereAreNoLinks) {
  const std::string before = write_a_damaged_one();
  const std::string said = test::run_in_child([&]() -> std::string {
    const test::CapturedLog log;
    test::deny(__NR_link, EPERM);
    StepLines(dir_.path(), {}, 4, 1);
    return log.contains("the file is now " + aside_) ? "told" : "not told";
  });
  EXPECT_EQ(said, "told");
  EXPECT_EQ(test::file_text(steps_), lines_of({1, 2, 4}));
  EXPECT_EQ(test::file_text(aside_), before);
}

// Before the last rename, the damaged file has both names, and the draft is whole.
TEST_F(ResumedLines, AKillBetweenTheFilesLosesNoWholeOne) {
  const std::string before = write_a_damaged_one();
  std::filesystem::create_hard_link(steps_, aside_);
  test::write_file(draft_, lines_of({1, 2, 4}));
  EXPECT_THAT(resume(1), ElementsAre(HasSubstr(steps_ + " had another name too")));
  EXPECT_EQ(test::file_text(steps_), lines_of({1, 2}));
  EXPECT_EQ(test::file_text(aside_), before) << "though the run went back to a step before";
  EXPECT_THAT(files(), ElementsAre(aside_, steps_));
  // Without links, the damaged one has its new name only.
  std::filesystem::remove(steps_);
  test::write_file(draft_, lines_of({1, 2, 4}));
  EXPECT_THAT(resume(4), ElementsAre(HasSubstr(steps_ + " was not there, and " + draft_ +
                                               " has its name now")));
  EXPECT_EQ(test::file_text(steps_), lines_of({1, 2, 4, 5}));
}

TEST_F(ResumedLines, AHalfCopyOfAKilledRunIsNotTaken) {
  std::string before = lines_of({1, 2, 3, 4, 5, 6, 7, 8});
  before[line_of(1).size()] = 'X';
  write(before);
  const std::string said = test::run_in_child([&]() -> std::string {
    const test::CapturedLog log;
    ::signal(SIGXFSZ, SIG_DFL);  // which kills
    test::limit_resource(RLIMIT_FSIZE, before.size() / 2);
    StepLines(dir_.path(), {}, 8, 1);
    return "not killed";
  });
  EXPECT_EQ(said, " (the child died)");
  EXPECT_EQ(files().size(), 2U);
  std::filesystem::rename(steps_, dir_.file("to look at"));
  EXPECT_THAT(resume(8), IsEmpty()) << "a report that begins here";
  EXPECT_EQ(test::file_text(steps_), lines_of({9}));
  EXPECT_THAT(files(), ElementsAre(steps_, dir_.file("to look at")));
}

// As workers that load data, which end when this process closes `ends`.
TEST_F(ResumedLines, AreNotHeldByForkedChildren) {
  const test::CapturedLog log;
  config::MonitorsConfig config;
  config.csv = {true, dir_.path(), "csv"};
  const auto begin = [&] {
    auto lines = std::make_unique<StepLines>(dir_.path(), config, 0, 1);
    StepRecord record;
    record.step = 1;
    lines->append(record);
    return lines;
  };
  int ends[2];
  int ready[2];
  ASSERT_TRUE(::pipe(ends) == 0 && ::pipe(ready) == 0);
  const auto fork_worker = [&] {
    const pid_t worker = ::fork();
    char byte = 0;
    if (worker == 0) {
      ::close(ends[1]);
      ::_exit(::write(ready[1], "x", 1) == 1 && ::read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    return worker;
  };
  std::unique_ptr<StepLines> lines = begin();
  const pid_t worker = fork_worker();
  EXPECT_THROW(begin(), StorageError) << "the parent has them";
  lines.reset();
  EXPECT_NO_THROW(begin());
  const pid_t killed = ::fork();
  if (killed == 0) {
    (void)error_of([&] {
      lines = begin();
      fork_worker();
      ::kill(::getpid(), SIGKILL);
    });
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(killed, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_NO_THROW(begin()) << "its worker lives";
  for (const int end : {ends[0], ends[1], ready[0], ready[1]}) ::close(end);
  ::waitpid(worker, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(ResumedLines, OnesThatAreMissingAreTold) {
  const auto missing = [&](const std::string& steps) {
    return ElementsAre(steps_ + ": the lines of these committed steps are missing: " + steps);
  };
  write(lines_of({1, 2, 3}));
  EXPECT_THAT(resume(8), missing("4 to 8"));
  EXPECT_THAT(resume(9), IsEmpty()) << "said once";
  EXPECT_EQ(test::file_text(steps_), lines_of({1, 2, 3, 9, 10}));
  write("");
  EXPECT_THAT(resume(8), missing("1 to 8"));
  std::filesystem::remove(steps_);
  EXPECT_THAT(resume(8), IsEmpty()) << "a report that begins here";
  EXPECT_THAT(resume(9), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(aside_));
}

TEST_F(ResumedLines, StepsThatGoBackAreThereOnce) {
  const std::string before = lines_of({1, 2, 3, 1, 2, 3, 4});
  write(before);
  EXPECT_THAT(resume(4), ElementsAre(HasSubstr("line 4 is damaged")));
  EXPECT_EQ(test::file_text(steps_), lines_of({1, 2, 3, 4, 5}));
  EXPECT_EQ(test::file_text(aside_), before);
}

// After a kill the last line may be torn, and later steps than the committed one are no loss.
TEST_F(ResumedLines, WhatAKillLeavesIsNoDamage) {
  for (const std::string& end :
       {line_of(5).substr(0, 30), line_of(5), lines_of({5, 6}) + "X\n" + std::string(9, '\0')}) {
    write(lines_of({1, 2, 3, 4}) + end);
    EXPECT_THAT(resume(4), IsEmpty());
    EXPECT_EQ(test::file_text(steps_), lines_of({1, 2, 3, 4, 5}));
  }
  EXPECT_FALSE(std::filesystem::exists(aside_));
}

TEST_F(ResumedLines, RowsOfMonitorsBehindADamagedOneStay) {
  config::MonitorsConfig config;
  config.csv = {true, dir_.path(), "csv"};
  const std::string rows = dir_.file("csv/Train_Samples_eval_loss.csv");
  std::filesystem::create_directory(dir_.file("csv"));
  std::ofstream(rows) << "step,eval_loss\r\n8,1.5\r\n!\r\n32,2.5\r\n40,";
  const test::CapturedLog log;
  { const Monitors monitors(config, 10, 8); }
  EXPECT_EQ(test::file_text(rows), "step,eval_loss\r\n8,1.5\r\n32,2.5\r\n");
  { const Monitors monitors(config, 10, 8); }
  ASSERT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(log.contains(rows + ": line 3 is damaged"));
}

TEST_F(ResumedLines, RowsBehindADamagedHeaderHaveOneAndZerosInARowAreDamage) {
  config::MonitorsConfig config;
  config.csv = {true, dir_.path(), "csv"};
  const std::string rows = dir_.file("csv/Train_Samples_lr.csv");
  const std::string aside = dir_.file("csv/Train_Samples_lr.1.csv");
  std::filesystem::create_directory(dir_.file("csv"));
  const std::string zeros("16,0.5\0\0\0\r\n", 11);
  for (const std::string& before : {std::string("Step,lr\r\n8,0.5\r\n24,0.5\r\n"),
                                    "step,lr\r\n8,0.5\r\n" + zeros + "24,0.5\r\n"}) {
    test::write_file(rows, before);
    const test::CapturedLog log;
    StepRecord record;
    record.step = 4;
    record.lr = 0.25;
    Monitors(config, 3, 8).append(record);
    EXPECT_EQ(test::file_text(rows), "step,lr\r\n8,0.5\r\n24,0.5\r\n32,0.25\r\n");
    EXPECT_EQ(test::file_text(aside), before);
    std::filesystem::remove(aside);
  }
}

// A drop box, or a hardened /tmp.
TEST_F(ResumedLines, LieBelowADirectoryThatMayNotBeListed) {
  namespace fs = std::filesystem;
  const std::string drop = dir_.file("drop");
  fs::create_directory(drop);
  fs::permissions(dir_.path(), fs::perms::all);
  fs::permissions(drop, static_cast<fs::perms>(0333));
  const std::string said = test::run_in_child([&]() -> std::string {
    if (::geteuid() == 0) test::become_another_user();
    if (::access(drop.c_str(), W_OK | X_OK) != 0) return "not permitted";
    const test::CapturedLog log;
    StepLines lines(drop + "/new/report", {}, 0, 1);
    StepRecord record;
    record.step = 1;
    lines.append(record);
    lines.sync();
    lines.finish();
    return log.contains(drop + ": may not be listed") ? "told" : "not told";
  });
  if (said == "not permitted" || said == " (the child died)")
    GTEST_SKIP() << "another user may not write here";
  EXPECT_EQ(said, "told");
  fs::permissions(drop, fs::perms::all);
  EXPECT_EQ(test::file_text(drop + "/new/report/steps.jsonl"), line_of(1));
}

// The error of a sync is one of lost lines, which the end of the run has not forgotten.
TEST_F(ResumedLines, ThatCannotBeSyncedAreAnErrorAtTheEnd) {
  const std::string said = test::run_in_child([&]() -> std::string {
    const test::CapturedLog log;
    StepLines lines(dir_.path(), {}, 0, 1);
    StepRecord record;
    record.step = 1;
    lines.append(record);
    lines.sync();
    test::deny(__NR_fdatasync, EIO);
    lines.sync();
    lines.sync();
    if (log.messages().size() != 1) return "said " + std::to_string(log.messages().size());
    if (!log.contains("lines of steps may be lost, and the training goes on")) return "not said";
    lines.finish();
    return "nothing";
  });
  EXPECT_THAT(said, AllOf(HasSubstr(steps_), HasSubstr("Input/output error")));
}

TEST_F(ResumedLines, AFileSystemThatWritesNothingIsSaidAndNotTriedForEver) {
  const std::string said = test::run_in_child([&]() -> std::string {
    constexpr unsigned kMostSeconds = 20;
    ::alarm(kMostSeconds);
    const test::CapturedLog log;
    StepLines lines(dir_.path(), {}, 0, 1);
    const unsigned file = descriptor_of(steps_);
    test::deny(__NR_write, 0, file, file);  // the sanitizer writes to pipes of its own
    StepRecord record;
    record.step = 1;
    lines.append(record);
    if (!log.contains("wrote 0 bytes")) return "not said";
    lines.finish();
    return "nothing";
  });
  EXPECT_THAT(said, AllOf(HasSubstr(steps_), HasSubstr("wrote 0 bytes")));
}

}  // namespace
}  // namespace sluice::train
