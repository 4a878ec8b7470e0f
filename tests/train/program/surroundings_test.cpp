// Odd files, directories, limits and file systems: a run goes on, or ends with one clear message
// and nothing lost.

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "in_child.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

// A mount for the life of the object; none where it is not permitted.
class Mounted {
 public:
  Mounted(const std::string& what, const std::string& where, const char* type, unsigned long flags)
      : where_(where), good_(::mount(what.c_str(), where.c_str(), type, flags, nullptr) == 0) {}
  ~Mounted() {
    if (good_) ::umount2(where_.c_str(), MNT_DETACH);
  }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  bool good() const { return good_; }

 private:
  std::string where_;
  bool good_;
};

TEST(Surroundings, AFifoInPlaceOfAFileIsRefusedAndNotWaitedFor) {
  TrainFolder folder;
  folder.set({});
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto with = [&](const std::string& flag) {
    std::vector<std::string> arguments = folder.arguments("report", 1);
    const auto at = std::find(arguments.begin(), arguments.end(), flag);
    if (at == arguments.end()) {
      arguments.insert(arguments.end(), {flag, fifo});
    } else {
      *(at + 1) = fifo;
    }
    return run_sluice(arguments);
  };
  for (const char* flag : {"--config", "--model"}) expect_refused(with(flag), 2, {fifo});
  expect_refused(with("--data"), 2, {fifo, "regular file"});
  expect_refused(with("--init"), 4, {fifo, "regular file"});
}

TEST(Surroundings, AReportThatIsNoFileIsRefusedAndNotWaitedFor) {
  TrainFolder folder;
  folder.set({});
  std::filesystem::create_directory(folder.path("report"));
  const std::string steps = folder.path("report") + "/steps.jsonl";
  ASSERT_EQ(::mkfifo(steps.c_str(), 0600), 0);
  expect_refused(folder.train("report", 1), 4, {steps, "not a regular file"});
  folder.clear_swap();
  std::filesystem::remove(steps);
  std::filesystem::create_symlink("/dev/full", steps);
  expect_refused(folder.train("report", 1), 4, {steps, "not a regular file"});
}

TEST(Surroundings, OneSwapDirectoryUnderTwoNamesIsOne) {
  TrainFolder folder;
  folder.set({});
  std::string text = file_text(folder.config());
  const auto last = text.rfind(folder.swap());
  text.replace(last, folder.swap().size(), folder.swap() + "/./");
  write_file(folder.config(), text);
  const ProgramResult result = folder.train("report", 2);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Surroundings, AForeignFolderAmongTheCheckpointsIsLeftAloneAndCostsNone) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.checkpoints() +
                      "\", \"checkpoint_every\": 2, \"keep\": 1, ";
  folder.set(setup);
  const std::string foreign = folder.checkpoints() + "/step-archived";
  std::filesystem::create_directories(foreign);
  write_file(foreign + "/notes", "keep me");
  ASSERT_EQ(folder.train("report", 4).exit_code, 0);
  EXPECT_EQ(file_text(foreign + "/notes"), "keep me");
  EXPECT_TRUE(std::filesystem::exists(folder.checkpoints() + "/step-00000004"));
  EXPECT_FALSE(std::filesystem::exists(folder.checkpoints() + "/step-00000002"));
  const ProgramResult rest = folder.train("report", 5, {"--resume"});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_NE((rest.err + rest.out).find("resumed from step 4"), std::string::npos) << rest.err;
}

TEST(Surroundings, ACheckpointThatAKilledRunDidNotFinishIsRemovedByTheNext) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys =
      "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", \"checkpoint_every\": 2, ";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  const std::string dead = folder.checkpoints() + "/step-00000007.tmp";
  std::filesystem::create_directory(dead);
  write_file(dead + "/states.0.swap", std::string(10'000, 'x'));
  const ProgramResult rest = folder.train("report", 3, {"--resume"});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_NE(rest.err.find("removed 1 checkpoint ("), std::string::npos) << rest.err;
}

TEST(Surroundings, ALimitOnTheSizeOfFilesIsAnErrorAndNotASignal) {
  TrainFolder folder;
  folder.set({});
  std::string command = "ulimit -f 64; exec \"$0\" \"$@\"";
  std::vector<std::string> argv = {"/bin/sh", "-c", command, SLUICE_PROGRAM};
  for (const std::string& argument : folder.arguments("report", 2)) argv.push_back(argument);
  expect_refused(run_program(argv), 4, {folder.swap(), "File too large"});
}

TEST(Surroundings, ALimitOnAddressSpaceOrTheStackIsRefusedBeforeLibTorchIsLoaded) {
  if (kUnderAddressSanitizer) GTEST_SKIP() << "AddressSanitizer reserves terabytes of addresses";
  TrainFolder folder;
  folder.set({});
  for (const std::string limit : {"ulimit -v 400000", "ulimit -v 1050000", "ulimit -s 80"}) {
    std::vector<std::string> argv = {"/bin/sh", "-c", limit + "; exec \"$0\" \"$@\"",
                                     SLUICE_PROGRAM};
    for (const std::string& argument : folder.arguments("report", 2)) argv.push_back(argument);
    expect_refused(run_program(argv), 3, {limit.substr(0, 9)});
  }
}

// With them LibTorch's kernels get fewer threads than they divide their work by. On a CPU without
// AVX-512 some kernels are others, which no such setting makes wrong: then the run has equal
// losses.
TEST(Surroundings, SettingsOfOpenMpThatMakeResultsWrongAreRefused) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys = "\"threads\": {\"compute\": 2}, ";  // one thread is never too few
  const std::vector<std::string> expected = outcome_of(folder, setup, 2).losses;
  for (const std::string setting :
       {"OMP_THREAD_LIMIT=1", "OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0"}) {
    folder.clear_swap();
    std::vector<std::string> argv = {"/usr/bin/env", setting, SLUICE_PROGRAM};
    for (const std::string& argument : folder.arguments("report", 2)) argv.push_back(argument);
    const ProgramResult result = run_program(argv);
    if (result.exit_code == 0) {
      EXPECT_EQ(column(folder, "report", "loss"), expected) << setting;
    } else {
      expect_refused(result, 2, {setting.substr(0, setting.find('='))});
    }
  }
}

TEST(Surroundings, AReadOnlySwapDirectoryIsNamed) {
  TrainFolder folder;
  folder.set({});
  const Mounted mounted(folder.swap(), folder.swap(), "none", MS_BIND);
  if (!mounted.good() ||
      ::mount("none", folder.swap().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr)) {
    GTEST_SKIP() << "mounting is not permitted here";
  }
  expect_refused(folder.train("report", 2), 4, {folder.swap(), "Read-only file system"});
}

// ramfs refuses O_DIRECT, has no fallocate and does not tell how much is free.
TEST(Surroundings, AFileSystemWithoutDirectIoIsUsedThroughThePageCacheAndSaysSo) {
  TrainFolder folder;
  TrainSetup setup;
  folder.set(setup);
  const Mounted mounted("ramfs", folder.swap(), "ramfs", 0);
  if (!mounted.good()) GTEST_SKIP() << "mounting is not permitted here";
  const ProgramResult result = folder.train("report", 3);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(folder.report_text("report").find("refuses O_DIRECT"), std::string::npos)
      << folder.report_text("report");
  const std::string shown = "chosen: files in " + folder.swap() + " go through the page cache: ";
  EXPECT_NE(result.out.find(shown), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("chosen: " + folder.swap() + " is on ramfs"), std::string::npos);
  EXPECT_EQ(folder.train("report", 4, {"--resume"}).exit_code, 0);
  setup.sluice_keys = "\"strict\": true, ";
  folder.set(setup);
  expect_refused(folder.train("report", 5, {"--resume"}), 2, {"strict", "O_DIRECT"});
}

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Surroundings, AContainerThatDeniesIoUringTrainsAndSaysSoOnce) {
  TrainFolder folder;
  folder.set({});
  const ProgramResult result =
      run_sluice(folder.arguments("report", 2), {}, [] { deny(__NR_io_uring_setup, EPERM); });
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "a seccomp filter");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of("chosen: I/O by ", result.out), 1U) << result.out;
  EXPECT_EQ(count_of("io_uring_setup (", result.out + result.err), 1U) << result.out;
  EXPECT_EQ(count_of("chosen: I/O by libaio: io_uring: ", result.out) +
                count_of("chosen: I/O by threads: io_uring: ", result.out),
            1U)
      << result.out;
  EXPECT_EQ(count_of("libaio: libaio", folder.report_text("report")), 0U);
}

TEST(Surroundings, RootWithoutTheRightToLockIsRefusedByThePlan) {
  TrainFolder folder;
  folder.set({});
  std::string text = file_text(folder.config());
  const std::string section = "\"offload_param\": {";
  text.insert(text.find(section) + section.size(), "\"pin_memory\": true, ");
  write_file(folder.config(), text);
  const ProgramResult result =
      run_sluice(folder.arguments("report", 2), {}, [] { limit_locked_memory(64 * 1024); });
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "giving up CAP_IPC_LOCK");
  expect_refused(result, 3,
                 {"RLIMIT_MEMLOCK is 64.0 KiB", "CAP_IPC_LOCK", "\"pin_memory\": false"});
  EXPECT_TRUE(folder.files("swap").empty()) << "the run began";
}

TEST(Surroundings, AMachineThatDoesNotTellItsCoresTrains) {
  if (kUnderAddressSanitizer) GTEST_SKIP() << "AddressSanitizer asks for each thread's cores";
  TrainFolder folder;
  for (const long call : {__NR_sched_getaffinity, __NR_sched_setaffinity}) {
    folder.clear_swap();
    folder.set({});
    const ProgramResult result = run_sluice(folder.arguments("report", 2), {}, [call] {
      ::alarm(60);  // a program that hangs ends
      deny(call, EPERM);
    });
    SLUICE_SKIP_IF_NOT_PERMITTED(result, "a seccomp filter");
    EXPECT_EQ(result.exit_code, 0) << call << ": " << result.err;
  }
}

// LibTorch and OpenMP wait for threads that they cannot have.
TEST(Surroundings, FewerProcessesThanThreadsAreAnErrorAtOnce) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  folder.set(setup);
  for (const std::string name : {".", "swap"})
    std::filesystem::permissions(folder.path(name), std::filesystem::perms::all);
  const auto limited = [&](const std::vector<std::string>& arguments, rlim_t limit) {
    return run_sluice(arguments, {}, [limit] {
      ::alarm(60);  // a program that hangs ends
      limit_processes(limit);
    });
  };
  const ProgramResult version = limited({"--version"}, 1000);
  SLUICE_SKIP_IF_NOT_PERMITTED(version, "becoming another user");
  if (version.exit_code == 127) GTEST_SKIP() << "other users cannot reach the build's folder";
  for (const rlim_t limit : {1, 2, 3}) {
    expect_refused(limited(folder.arguments("report" + std::to_string(limit), 2), limit), 1,
                   {"threads that it needs", "RLIMIT_NPROC", "is " + std::to_string(limit)});
  }
}

TEST(Surroundings, ASignalWhileLibTorchIsLoadedEndsTheStart) {
  TrainFolder folder;
  folder.set({});
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    Process program = start_sluice(folder.arguments("report", 100000));
    const std::string maps = "/proc/" + std::to_string(program.id()) + "/maps";
    while (file_text(maps).find("libsluice_train.so") == std::string::npos)  // another process
      ASSERT_TRUE(program.runs()) << "ended without loading LibTorch";
    program.signal(signal);
    ASSERT_EQ(program.wait(), 128 + signal);
    EXPECT_FALSE(std::filesystem::exists(folder.swap() + "/manifest.json"));
  }
}

TEST(Surroundings, AnExportReplacesFilesOnlyAndNoneOfTheRun) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  const auto export_to = [&](const std::string& out) {
    return run_sluice({"export", folder.swap(), "--out", out});
  };
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(export_to(fifo), 2, {fifo, "not a regular file"});
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  const std::string manifest = folder.swap() + "/manifest.json";
  const std::string before = file_text(manifest);
  expect_refused(export_to(manifest), 2, {manifest, "the run itself"});
  EXPECT_EQ(file_text(manifest), before);
  const std::string link = folder.path("link");
  std::filesystem::create_symlink(folder.path("target"), link);
  EXPECT_EQ(export_to(link).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_GT(std::filesystem::file_size(folder.path("target")), 100000U);
}

TEST(Surroundings, TheCheckpointDirectoryIsTriedAtTheStartAndHeldByOneRun) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", ";
  folder.set(setup);
  write_file(folder.checkpoints(), "a file");
  expect_refused(folder.train("report", 100000), 4, {folder.checkpoints()});
  EXPECT_EQ(file_text(folder.checkpoints()), "a file");
  std::filesystem::remove(folder.checkpoints());
  Process first = start_sluice(folder.arguments("first", 100000));
  ASSERT_TRUE(wait_for_lines(first, folder.path("first") + "/steps.jsonl", 1));
  expect_refused(folder.train("second", 2), 4, {folder.checkpoints(), std::to_string(first.id())});
  expect_refused(folder.train("first", 2, {"--placement", "resident"}), 4,
                 {folder.checkpoints(), std::to_string(first.id())});
}

TEST(Surroundings, TheStepsOfAnEarlierRunAreKeptAndTwoRunsDoNotShareAFile) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 3).exit_code, 0);
  const std::string before = file_text(folder.path("report") + "/steps.jsonl");
  folder.clear_swap();
  Process second = start_sluice(folder.arguments("report", 100000));
  while (!std::filesystem::exists(folder.path("report") + "/steps.1.jsonl"))
    ASSERT_TRUE(second.runs());
  ASSERT_TRUE(wait_for_lines(second, folder.path("report") + "/steps.jsonl", 1));
  EXPECT_EQ(file_text(folder.path("report") + "/steps.1.jsonl"), before);
  expect_refused(folder.train("report", 2, {"--placement", "resident"}), 4,
                 {"steps.jsonl", "another run"});
}

TEST(Surroundings, OutputThatCannotBeWrittenIsAnError) {
  const ProgramResult full =
      run_program({"/bin/sh", "-c", "exec \"$0\" config keys --json > /dev/full", SLUICE_PROGRAM});
  expect_refused(full, 4, {"standard output", "No space left"});
}

// As on a full disk: no file of the process grows beyond 2 KiB.
TEST(Surroundings, AReportThatCannotBeWrittenEndsNoTraining) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  folder.set(setup);
  std::string command = "ulimit -f 4; exec '" SLUICE_PROGRAM "'";
  for (const std::string& argument : folder.arguments("report", 12))
    command += " '" + argument + "'";
  const ProgramResult result = run_program({"/bin/sh", "-c", command});
  expect_refused(result, 4, {"steps.jsonl", "File too large", "the training goes on", "step 12"});
}

TEST(Surroundings, AClosedPipeEndsTheRunAfterItsStep) {
  TrainFolder folder;
  folder.set({});
  std::string command = "'" SLUICE_PROGRAM "'";
  for (const std::string& argument : folder.arguments("report", 100000))
    command += " '" + argument + "'";
  // The status of the first program of the pipe, without bash's PIPESTATUS.
  const std::string script =
      "{ " + command + "; echo $? > '" + folder.path("status") + "'; } | head -2 > /dev/null";
  run_program({"/bin/sh", "-c", script});
  EXPECT_EQ(file_text(folder.path("status")), "141\n");
  EXPECT_FALSE(std::filesystem::exists(folder.swap() + "/scratch.spill.swap"));
  const int steps = line_count(folder.path("report") + "/steps.jsonl");
  const ProgramResult rest = folder.train("report", steps + 1, {"--resume"});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(line_count(folder.path("report") + "/steps.jsonl"), steps + 1);
}

TEST(Surroundings, AConfigurationFromAPipeTrains) {
  TrainFolder folder;
  folder.set({});
  std::string command = "cat '" + folder.config() + "' | '" SLUICE_PROGRAM "'";
  std::vector<std::string> arguments = folder.arguments("report", 2);
  *(std::find(arguments.begin(), arguments.end(), "--config") + 1) = "/dev/stdin";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  const ProgramResult result = run_program({"/bin/sh", "-c", command});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Surroundings, ASignalEndsALongEvaluation) {
  TrainFolder folder;
  folder.set({});
  write_file(folder.data(), sample_text(20'000'000));
  const auto begin = std::chrono::steady_clock::now();
  // One step, then an evaluation of 300,000 windows.
  const std::vector<std::string> more = {"--eval-fraction", "0.5", "--eval-windows", "0"};
  const std::vector<std::string> arguments = folder.arguments("report", 1, more);
  const int code = run_and_signal(arguments, std::chrono::milliseconds(2500), SIGTERM);
  EXPECT_EQ(code, 143);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(column(folder, "report", "loss").size(), 1U) << "the step itself is kept";
}

}  // namespace
}  // namespace sluice::test
