// `sluice plan` and `sluice doctor` under the limits of containers: they show what a run meets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "cli/run_program.hpp"
#include "file_text.hpp"
#include "in_child.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A child says with its exit code that a limit may not be set.
#define SLUICE_SKIP_IF_NOT_PERMITTED(result, what) \
  if ((result).exit_code == kNotPermitted) GTEST_SKIP() << (what) << " is not permitted here"

constexpr rlim_t kLockLimit = 64U << 10U;

class Limits : public ::testing::Test {
 protected:
  Limits() {
    write_file(directory_.file("model.json"), kModelJson);
    std::filesystem::create_directory(swap());
  }
  std::string swap() const { return directory_.file("swap"); }
  ProgramResult plan(const std::string& offload, const std::string& sluice_keys,
                     const std::function<void()>& before = {}) const {
    write_file(directory_.file("ds.json"),
               R"({"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                   "bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
                   "offload_optimizer": {)" +
                   offload + R"(}}, "sluice": {)" + sluice_keys + "}}");
    return run_sluice(
        {"plan", "--config", directory_.file("ds.json"), "--model", directory_.file("model.json")},
        {}, before);
  }
  // With this text in place of a file of /proc.
  ProgramResult plan_under(const char* proc_file, const std::string& text) const {
    const std::string file = directory_.file("proc");
    write_file(file, text);
    return plan(R"("device": "none")", "", [&] {
      in_child_check(::unshare(CLONE_NEWNS) == 0 &&
                     ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                     ::mount(file.c_str(), proc_file, nullptr, MS_BIND, nullptr) == 0);
    });
  }
  std::string config() const { return directory_.file("ds.json"); }
  std::string model() const { return directory_.file("model.json"); }
  std::string on_drive() const { return R"("device": "nvme", "nvme_path": ")" + swap() + "\""; }

 private:
  TempDir directory_;
};

TEST_F(Limits, APlanRefusesToPinMemoryThatRootMayNotLock) {
  const ProgramResult result =
      plan(R"("device": "cpu", "pin_memory": true)", "", [] { limit_locked_memory(kLockLimit); });
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "giving up CAP_IPC_LOCK");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("RLIMIT_MEMLOCK is 64.0 KiB"));
  EXPECT_THAT(result.err, HasSubstr("lacks CAP_IPC_LOCK"));
}

TEST_F(Limits, DoctorShowsWhatRootMayLock) {
  const ProgramResult result = run_sluice({"doctor"}, {}, [] { limit_locked_memory(kLockLimit); });
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "giving up CAP_IPC_LOCK");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("at most 64.0 KiB can be locked"));
}

TEST_F(Limits, APlanNamesTheBackendAndWhyNotABetterOneOnce) {
  const auto no_uring = [] { deny(__NR_io_uring_setup, EPERM); };
  const ProgramResult result = plan(on_drive(), "", no_uring);
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "a seccomp filter");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("chosen: I/O by (libaio|threads): io_uring: "));
  EXPECT_THAT(result.out, Not(HasSubstr("libaio: libaio")));
  const ProgramResult strict = plan(on_drive(), "\"strict\": true", no_uring);
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_THAT(strict.err, HasSubstr("\"strict\": true does not allow: I/O by "));
}

TEST_F(Limits, APlanNamesTheThreadsWhereTheKernelsBackendsAreDenied) {
  const ProgramResult result = plan(on_drive(), "", [] {
    deny(__NR_io_uring_setup, EPERM);
    deny(__NR_io_setup, EPERM);
  });
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "a seccomp filter");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("chosen: I/O by threads: io_uring: "));
  EXPECT_THAT(result.out, HasSubstr("; libaio: "));
}

class LimitsOfMounts : public Limits {
 protected:
  ~LimitsOfMounts() override {
    if (mounted_) ::umount2(swap().c_str(), MNT_DETACH);
  }
  bool mount(const char* type, unsigned long flags = 0, const char* options = nullptr) {
    mounted_ = ::mount(type, swap().c_str(), type, flags, options) == 0;
    return mounted_;
  }
  // A plan that measures the drive of swap() first.
  ProgramResult probe(const std::string& rates) const {
    plan(on_drive(), "");  // writes the configuration
    return run_sluice(
        {"plan", "--config", config(), "--model", model(), "--probe", "--rates", rates});
  }

 private:
  bool mounted_ = false;
};

TEST_F(LimitsOfMounts, APlanSaysThatASwapDirectoryIsMemory) {
  if (!mount("tmpfs")) GTEST_SKIP() << "mounting is not permitted here";
  const ProgramResult result = plan(on_drive(), "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("chosen: " + swap() + " is on tmpfs, files there are memory"));
  EXPECT_TRUE(std::filesystem::is_empty(swap())) << "the plan left a file";
  const ProgramResult check = run_sluice({"config", "check", config()});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("caution: " + swap() + " is on tmpfs, files there are memory"));
  const ProgramResult strict = plan(on_drive(), "\"strict\": true");
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_THAT(strict.err, HasSubstr("\"strict\": true does not allow: "));
  EXPECT_THAT(strict.err, HasSubstr(swap()));
}

TEST_F(LimitsOfMounts, ACheckpointDirectoryThatIsMemoryIsSaid) {
  if (!mount("tmpfs")) GTEST_SKIP() << "mounting is not permitted here";
  const std::string checkpoints = swap() + "/new";
  const std::string line =
      "checkpoints go to " + checkpoints + ": " + swap() + " is on tmpfs, files there are memory";
  const std::string key = R"("checkpoint_dir": ")" + checkpoints + "\"";
  const std::string offload = R"("device": "cpu", "pin_memory": false)";
  const ProgramResult result = plan(offload, key);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("chosen: " + line));
  const ProgramResult check = run_sluice({"config", "check", config()});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("caution: " + line));
  const ProgramResult strict = plan(offload, key + R"(, "strict": true)");
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_THAT(strict.err, HasSubstr("\"strict\": true does not allow: " + line));
}

TEST_F(LimitsOfMounts, TheLargestModelOfARunWithoutCheckpointsNeedsNoRoomForThem) {
  if (!mount("tmpfs", 0, "size=200k")) GTEST_SKIP() << "mounting is not permitted here";
  plan(R"("device": "cpu")", R"("device": "host", "device_bytes": "64MiB", "host_bytes": "64MiB",
                                "checkpoint_dir": ")" +
                                 swap() + "\"");  // writes the configuration
  const auto largest = [&](const char* steps) {
    return run_sluice(
        {"plan", "--config", config(), "--model", model(), "--max", "--steps", steps});
  };
  EXPECT_EQ(largest("5").exit_code, 3);
  const ProgramResult only_evaluates = largest("0");
  ASSERT_EQ(only_evaluates.exit_code, 0) << only_evaluates.err;
  const std::string before = "the largest model of this shape that fits has ";
  const std::size_t at = only_evaluates.out.find(before);
  ASSERT_NE(at, std::string::npos) << only_evaluates.out;
  const std::string blocks =
      std::to_string(std::stoi(only_evaluates.out.substr(at + before.size())));
  EXPECT_THAT(only_evaluates.out, HasSubstr(", " + blocks + " blocks; with NVMe: not known"));
}

TEST_F(LimitsOfMounts, APlanSaysThatFilesGoThroughThePageCache) {
  if (!mount("ramfs")) GTEST_SKIP() << "mounting is not permitted here";
  const ProgramResult result = plan(on_drive(), "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("chosen: files in " + swap() + " go through the page cache"));
  const ProgramResult strict = plan(on_drive(), "\"strict\": true");
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_THAT(strict.err, HasSubstr("O_DIRECT"));
}

TEST_F(LimitsOfMounts, AProbeNeedsRoomOnTheDriveBeforeItMeasures) {
  if (!mount("tmpfs", 0, "size=20m")) GTEST_SKIP() << "mounting is not permitted here";
  const ProgramResult result = probe(swap() + "/rates.json");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_EQ(result.err, "sluice: " + swap() +
                            ": 20.0 MiB are free, too little to measure its drive: that needs "
                            "32.0 MiB\n");
  EXPECT_TRUE(std::filesystem::is_empty(swap()));
}

TEST_F(LimitsOfMounts, AProbeNeedsAFileForItsRatesBeforeItMeasures) {
  if (!mount("tmpfs", MS_RDONLY)) GTEST_SKIP() << "mounting is not permitted here";
  for (const std::string& rates : {swap() + "/rates.json", swap() + "/new/rates.json"}) {
    const ProgramResult result = probe(rates);
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, HasSubstr(rates + ": write: Read-only file system"));
  }
}

TEST_F(Limits, APlanSaysThatASwapDirectoryIsMissing) {
  std::filesystem::remove(swap());
  const ProgramResult missing = plan(on_drive(), "");
  EXPECT_EQ(missing.exit_code, 0) << missing.err;
  EXPECT_THAT(missing.out, HasSubstr("it does not exist yet: create it before training"));
  EXPECT_THAT(missing.out, Not(HasSubstr("chosen: " + swap()))) << "the disk's line says it";
  sluice::test::write_file(swap(), "");
  const ProgramResult file = plan(on_drive(), "");
  EXPECT_THAT(file.out, HasSubstr("chosen: " + swap() + " is no directory: a run needs one"));
}

// A control group with a memory limit, for as long as the object lives.
class ScopedGroup {
 public:
  explicit ScopedGroup(std::uint64_t limit_bytes) {
    const std::string name = "/sluice-test-" + std::to_string(::getpid());
    for (const auto& [top, file] : {std::pair{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes"},
                                    std::pair{"/sys/fs/cgroup", "/memory.max"}}) {
      path_ = top + name;
      std::error_code error;
      if (!std::filesystem::create_directory(path_, error)) continue;
      limit_file_ = path_ + file;
      if (std::filesystem::exists(limit_file_)) {
        write_file(limit_file_, std::to_string(limit_bytes));
        good_ = file_text(limit_file_) == std::to_string(limit_bytes) + "\n";
        return;
      }
      std::filesystem::remove(path_, error);
    }
  }
  ~ScopedGroup() { ::rmdir(path_.c_str()); }
  ScopedGroup(const ScopedGroup&) = delete;
  ScopedGroup& operator=(const ScopedGroup&) = delete;

  bool good() const { return good_; }
  const std::string& limit_file() const { return limit_file_; }
  // For a child.
  void enter() const {
    std::ofstream tasks(path_ + "/cgroup.procs");
    tasks << ::getpid() << std::flush;
    in_child_check(tasks.good());
  }

 private:
  std::string path_;
  std::string limit_file_;
  bool good_ = false;
};

TEST_F(Limits, APlanStaysWithinTheControlGroup) {
  const ScopedGroup group(512U << 20U);
  if (!group.good()) GTEST_SKIP() << "a control group with a memory limit cannot be made here";
  const auto enter = [&] { group.enter(); };
  const ProgramResult large = plan(R"("device": "cpu")", R"("host_bytes": "10GiB")", enter);
  SLUICE_SKIP_IF_NOT_PERMITTED(large, "entering a control group");
  EXPECT_EQ(large.exit_code, 3) << large.out;
  EXPECT_THAT(large.err, HasSubstr("\"host_bytes\"} is 10.0 GiB"));
  EXPECT_THAT(large.err, HasSubstr("512 MiB of memory (" + group.limit_file() + ")"));
  const ProgramResult automatic = plan(R"("device": "cpu")", "", enter);
  EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
  EXPECT_THAT(automatic.out, ::testing::ContainsRegex("host_bytes: 1[0-9][0-9] MiB of the memory"));
  EXPECT_THAT(run_sluice({"doctor"}, {}, enter).out, HasSubstr("control group limit 512 MiB"));
}

// A run keeps its data files open. The soft limit is raised; the hard one is named.
TEST_F(Limits, OfOpenFilesAreRaisedAsFarAsTheyGo) {
  const TempDir data;
  for (int i = 0; i < 100; ++i) write_file(data.file(std::to_string(i) + ".txt"), "0123456789");
  write_file(data.file("long.txt"), std::string(5000, 'x'));
  const auto plan_with = [&](rlim_t hard) {
    plan(R"("device": "none")", "");  // writes the files
    return run_sluice({"plan", "--config", config(), "--model", model(), "--data", data.path()}, {},
                      [hard] {
                        struct rlimit limit {};
                        ::getrlimit(RLIMIT_NOFILE, &limit);
                        limit.rlim_cur = 64;
                        limit.rlim_max = std::min(limit.rlim_max, hard);
                        ::setrlimit(RLIMIT_NOFILE, &limit);
                      });
  };
  const ProgramResult raised = plan_with(500);
  EXPECT_EQ(raised.exit_code, 0) << raised.err;
  const ProgramResult refused = plan_with(64);
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("A run keeps all its data files open, and this process may "
                                     "open 64 files: raise that limit (ulimit -n"));
}

#ifndef __SANITIZE_ADDRESS__  // which reads /proc itself
// As in a chroot.
TEST_F(Limits, WithoutProcAPlanKnowsTheMemoryAndTrainNamesProc) {
  const auto without_proc = [] {
    in_child_check(::unshare(CLONE_NEWNS) == 0 &&
                   ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                   ::mount("none", "/proc", "tmpfs", 0, nullptr) == 0);
  };
  const ProgramResult planned = plan(R"("device": "cpu", "pin_memory": false)", "", without_proc);
  SLUICE_SKIP_IF_NOT_PERMITTED(planned, "a mount namespace");
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  const ProgramResult trained = run_sluice(
      {"train", "--config", config(), "--model", model(), "--data", model()}, {}, without_proc);
  EXPECT_EQ(trained.exit_code, 1) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("/proc is not mounted, and the program"));
  EXPECT_THAT(trained.err, Not(HasSubstr("LibTorch")));
  const ProgramResult doctor = run_sluice({"doctor"}, {}, without_proc);
  EXPECT_EQ(doctor.exit_code, 0) << doctor.err;
  EXPECT_THAT(doctor.out, HasSubstr("/proc is not mounted"));
  EXPECT_THAT(doctor.out, Not(HasSubstr("0 B available")));
}
#endif

// As lxcfs says it of a container that is at its limit.
TEST_F(Limits, APlanOfAMachineWithoutAvailableMemoryIsRefused) {
  const ProgramResult result =
      plan_under("/proc/meminfo", "MemTotal: 16318480 kB\nMemAvailable: 0 kB\n");
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "a mount namespace");
  EXPECT_EQ(result.exit_code, 3) << result.out;
  EXPECT_THAT(result.err, HasSubstr("this process has 0 B of free memory"));
}

TEST_F(Limits, APlanOfAProcessorWithoutANameIsMade) {
  const ProgramResult result = plan_under("/proc/cpuinfo", "model name\t:\n");
  SLUICE_SKIP_IF_NOT_PERMITTED(result, "a mount namespace");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// hwloc asks for the allowed cores until it gets an answer.
TEST_F(Limits, DoctorEndsWhereCoresAreNotTold) {
  for (const long call : {__NR_sched_getaffinity, __NR_sched_setaffinity}) {
    const ProgramResult result = run_sluice({"doctor"}, {}, [call] {
      ::alarm(30);  // a program that hangs ends
      deny(call, EPERM);
    });
    SLUICE_SKIP_IF_NOT_PERMITTED(result, "a seccomp filter");
    EXPECT_EQ(result.exit_code, 0) << call << ": " << result.err;
    EXPECT_THAT(result.out, HasSubstr("NUMA"));
  }
}

}  // namespace
}  // namespace sluice::test
