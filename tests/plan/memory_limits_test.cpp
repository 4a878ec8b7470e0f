// Limits of control groups and of locked memory, from fake folders of /proc and /sys and in a child
// without the capability.

#include "sluice/plan/memory_limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "in_child.hpp"
#include "plans.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/machine.hpp"
#include "temp_dir.hpp"

namespace sluice::plan {
namespace {

constexpr const char* kUnlimitedInVersion1 = "9223372036854771712";

constexpr const char* kMountsOfVersion1 =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
    "broken\n";
constexpr const char* kMountOfVersion2 =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

// A machine's /proc and /sys in a folder.
class FakeSystem {
 public:
  FakeSystem(const std::string& mounts, const std::string& groups) {
    write("/proc/self/mountinfo", mounts);
    write("/proc/self/cgroup", groups);
  }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void version1(const std::string& group, const std::string& limit, std::uint64_t used) const {
    write("/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", limit);
    write("/sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", std::to_string(used));
  }
  void version2(const std::string& group, const std::string& limit, std::uint64_t used) const {
    write("/sys/fs/cgroup" + group + "/memory.max", limit);
    write("/sys/fs/cgroup" + group + "/memory.current", std::to_string(used));
  }
  const std::string& root() const { return directory_.path(); }

 private:
  test::TempDir directory_;
};

std::string mib(std::uint64_t count) {
  return std::to_string(count * kMiB);
}

TEST(GroupMemory, OfVersion1IsTheLeastOfAllAncestors) {
  const FakeSystem system(kMountsOfVersion1, "2:cpu:/\n4:memory:/jobs/train\n0::/");
  system.version1("", kUnlimitedInVersion1, 9000 * kMiB);
  system.version1("/jobs", mib(512), 100 * kMiB);
  system.version1("/jobs/train", mib(2048), 60 * kMiB);
  const auto memory = group_memory(system.root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 512 * kMiB);
  EXPECT_EQ(memory->available_bytes, 412 * kMiB);
  EXPECT_EQ(memory->limit_file, system.root() + "/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes");
}

TEST(GroupMemory, OfVersion1IsEmptyWithTheNumberThatMeansUnlimited) {
  const FakeSystem system(kMountsOfVersion1, "4:memory:/jobs\n");
  system.version1("", kUnlimitedInVersion1, 9000 * kMiB);
  system.version1("/jobs", kUnlimitedInVersion1, 100 * kMiB);
  EXPECT_FALSE(group_memory(system.root()));
}

TEST(GroupMemory, OfVersion2IsTheLeastOfAllAncestors) {
  const FakeSystem system(kMountOfVersion2, "0::/user.slice/job.scope/inner\n");
  system.version2("/user.slice", mib(4096), 1000 * kMiB);
  system.version2("/user.slice/job.scope", mib(700), 100 * kMiB);
  system.version2("/user.slice/job.scope/inner", "max", 50 * kMiB);
  const auto memory = group_memory(system.root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 700 * kMiB);
  EXPECT_EQ(memory->available_bytes, 600 * kMiB);
}

// A full ancestor leaves less than a smaller group that is empty.
TEST(GroupMemory, LeavesWhatTheFullestGroupLeaves) {
  const FakeSystem system(kMountOfVersion2, "0::/all/mine\n");
  system.version2("/all", mib(4096), 4000 * kMiB);
  system.version2("/all/mine", mib(512), 1 * kMiB);
  const auto memory = group_memory(system.root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 512 * kMiB);
  EXPECT_EQ(memory->available_bytes, 96 * kMiB);
}

TEST(GroupMemory, OfVersion2IsEmptyWithMax) {
  const FakeSystem system(kMountOfVersion2, "0::/job\n");
  system.version2("/job", "max", 50 * kMiB);
  EXPECT_FALSE(group_memory(system.root()));
}

// Version 2 without controllers beside version 1, as systemd mounts both.
TEST(GroupMemory, IsFoundWhereBothVersionsAreMounted) {
  const FakeSystem system(std::string(kMountsOfVersion1) +
                              "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                          "5:cpu,memory:/job\n0::/elsewhere\n");
  system.version1("/job", mib(512), 12 * kMiB);
  system.write("/sys/fs/cgroup/unified/elsewhere/memory.max", mib(2048));
  const auto memory = group_memory(system.root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 512 * kMiB);
  EXPECT_EQ(memory->available_bytes, 500 * kMiB);
}

// /proc names the group as the machine does, and the mount shows the container's group as its top.
TEST(GroupMemory, OfAContainerIsAtTheMountPoint) {
  const FakeSystem system(
      "35 31 0:32 /docker/1f0 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
      "4:memory:/docker/1f0/inner\n");
  system.version1("", mib(512), 12 * kMiB);
  system.version1("/inner", mib(256), 6 * kMiB);
  const auto memory = group_memory(system.root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 256 * kMiB);
  const FakeSystem outside(
      "35 31 0:32 /docker/1f0 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
      "4:memory:/docker/1f0\n");
  outside.version1("", mib(512), 12 * kMiB);
  ASSERT_TRUE(group_memory(outside.root()));
  EXPECT_EQ(group_memory(outside.root())->limit_bytes, 512 * kMiB);
}

// A namespace of control groups shows groups outside of it with "..".
TEST(GroupMemory, OfAGroupOutsideTheNamespaceIsThatOfTheMountPoint) {
  const FakeSystem system(kMountOfVersion2, "0::/../other\n");
  system.version2("", mib(512), 12 * kMiB);
  ASSERT_TRUE(group_memory(system.root()));
  EXPECT_EQ(group_memory(system.root())->limit_bytes, 512 * kMiB);
}

TEST(GroupMemory, CountsInactivePagesOfFilesAsAvailable) {
  const FakeSystem version2(kMountOfVersion2, "0::/job\n");
  version2.version2("/job", mib(512), 500 * kMiB);
  version2.write("/sys/fs/cgroup/job/memory.stat",
                 "anon 1048576\ninactive_file " + mib(400) + "\nactive_file 1");
  EXPECT_EQ(group_memory(version2.root())->available_bytes, 412 * kMiB);
  const FakeSystem version1(kMountsOfVersion1, "4:memory:/job\n");
  version1.version1("/job", mib(512), 500 * kMiB);
  version1.write("/sys/fs/cgroup/memory/job/memory.stat",
                 "inactive_file 0\ntotal_inactive_file " + mib(400));
  EXPECT_EQ(group_memory(version1.root())->available_bytes, 412 * kMiB);
}

TEST(GroupMemory, IsEmptyWithoutProc) {
  const test::TempDir empty;
  EXPECT_FALSE(group_memory(empty.path()));
}

constexpr const char* kMachinesUsers = "         0          0 4294967295";

// In a child, where RLIMIT_MEMLOCK can be lowered for good.
std::string lockable_in_child(const FakeSystem& system) {
  return test::run_in_child([&] {
    test::limit_resource(RLIMIT_MEMLOCK, 64 * kKiB);
    const std::uint64_t bytes = lockable_bytes(system.root());
    return bytes == offload::kUnlimited ? std::string("unlimited") : std::to_string(bytes);
  });
}

TEST(LockableBytes, AreDecidedByTheCapability) {
  const FakeSystem system("", "");
  system.write("/proc/self/uid_map", kMachinesUsers);
  system.write("/proc/self/status", "Name:\tsluice\nCapPrm:\t0\nCapEff:\t0000000000004000");
  EXPECT_EQ(lockable_in_child(system), "unlimited");
  // Docker's default: root with fourteen capabilities, without CAP_IPC_LOCK.
  system.write("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb");
  EXPECT_EQ(lockable_in_child(system), "65536");
}

// The kernel asks for the capability over the machine.
TEST(LockableBytes, AreLimitedForRootOfAUserNamespace) {
  const FakeSystem system("", "");
  system.write("/proc/self/status", "CapEff:\t000001ffffffffff");
  system.write("/proc/self/uid_map", "         0       1000          1");
  EXPECT_EQ(lockable_in_child(system), "65536");
}

// With real rights: the kernel refuses what the planner would refuse.
TEST(LockableBytes, OfRootWithoutTheCapabilityAreLimited) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give up a capability";
  const std::string said = test::run_in_child([] {
    test::limit_locked_memory(64 * kKiB);
    offload::MemoryPool pool(offload::Tier::pinned, offload::kUnlimited,
                             offload::make_pinned_source());
    std::string locked = "locked";
    try {
      pool.allocate(128 * kKiB, "beyond the limit");
    } catch (const std::exception&) {
      locked = "refused";
    }
    return locked + " " + std::to_string(probe_machine({}).memlock_bytes);
  });
  EXPECT_EQ(said, "refused 65536");
}

// A control group leaves less than the machine has.
TEST(Plan, StaysWithinTheControlGroup) {
  MachineFacts machine = roomy_machine();
  machine.group_memory = GroupMemory{512 * kMiB, 300 * kMiB, "/sys/fs/cgroup/job/memory.max"};
  machine.available_memory_bytes = 300 * kMiB;
  const auto config = train_config(Device::nvme, Device::nvme, 512, 400);
  const std::string short_of = refusal(config, model_config(24, 1024), machine);
  EXPECT_NE(short_of.find("300 MiB of free memory (its control group allows 512 MiB: "
                          "/sys/fs/cgroup/job/memory.max)"),
            std::string::npos)
      << short_of;
  // The model would fit; the budget never can.
  const std::string beyond =
      refusal(train_config(Device::nvme, Device::nvme, 64, 513), model_config(2, 64), machine);
  EXPECT_NE(beyond.find("\"sluice\": {\"host_bytes\"} is 513 MiB, but the control group of this "
                        "process allows 512 MiB of memory (/sys/fs/cgroup/job/memory.max): lower"),
            std::string::npos)
      << beyond;
  const auto within = train_config(Device::nvme, Device::nvme, 64, 64);
  EXPECT_NO_THROW(make_plan(within, model_config(2, 64), Placement::configured, machine));
}

}  // namespace
}  // namespace sluice::plan
