// The planner's facts about drives and GPUs.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "machine/device_choice.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/plan/machine.hpp"
#include "temp_dir.hpp"

namespace sluice::plan {
namespace {

// A resumed run reuses the space of its own files, in every directory of a stripe.
TEST(Machine, CountsTheSpaceOfAnEarlierRunInEachDirectory) {
  constexpr std::uint64_t kBytes = 64U << 20U;
  const test::TempDir first;
  const test::TempDir second;
  for (const std::string& path :
       {first.file("states.0.swap"), second.file("states.0.part2.swap")}) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::posix_fallocate(fd.get(), 0, kBytes), 0);
  }
  config::TrainConfig config;
  config.zero.offload_optimizer.device = config::OffloadConfig::Device::nvme;
  config.zero.offload_optimizer.directories = {first.path(), second.path()};
  const MachineFacts facts = probe_machine(config);
  ASSERT_EQ(facts.free_disk_bytes.size(), 2U);
  for (const auto& [directory, free_bytes] : facts.free_disk_bytes) {
    // Other programs use the drive too, but not half of this at once.
    EXPECT_GT(free_bytes, nvme::free_disk_bytes(directory) + kBytes / 2) << directory;
  }
  ASSERT_EQ(facts.file_systems.size(), 2U);
  EXPECT_EQ(facts.file_systems[0].second, facts.file_systems[1].second);
}

TEST(Machine, RefusesADirectoryUnderTwoNamesOfAStripe) {
  const test::TempDir first;
  const test::TempDir other;
  const std::string link = other.file("link");
  std::filesystem::create_directory_symlink(first.path(), link);
  config::TrainConfig config;
  config.zero.offload_param.device = config::OffloadConfig::Device::nvme;
  config.zero.offload_param.directories = {first.path(), link};
  EXPECT_THAT(
      sluice::test::message_of<InvalidArgument>([&] { probe_machine(config); }),
      testing::HasSubstr(link + " is named twice among the directories to stripe over, also as " +
                         first.path() + ": "));
}

// The tests see no GPU (CUDA_VISIBLE_DEVICES is empty where one is).
TEST(Machine, SaysWhyItComputesOnTheHost) {
  config::TrainConfig config;
  const MachineFacts chosen = probe_machine(config);
  EXPECT_FALSE(chosen.device.gpu.has_value());
  EXPECT_TRUE(chosen.device.host_addressable);
  EXPECT_THAT(chosen.device_choice, testing::StartsWith("device: the host (auto): "));
  config.sluice.device.kind = config::ComputeDevice::Kind::host;
  EXPECT_EQ(probe_machine(config).device_choice, "");
}

TEST(Machine, RefusesAGpuThatIsAskedForByNameAndNotThere) {
  config::TrainConfig config;
  config.sluice.device = {config::ComputeDevice::Kind::cuda, 3};
  const std::string said =
      sluice::test::message_of<InvalidArgument>([&] { probe_machine(config); });
  EXPECT_THAT(said, testing::StartsWith("\"sluice\": {\"device\": \"cuda:3\"}: "));
  EXPECT_GT(said.size(), 40U) << "without a reason";
}

// A machine without a GPU is no mistake; a GPU whose driver fails is not passed over.
TEST(Machine, RefusesTheHostInPlaceOfGpusThatFail) {
  offload::CudaDevices found{{}, "the driver fails", true};
  const auto refused = [&](const config::ComputeDevice& asked) {
    return sluice::test::message_of<InvalidArgument>([&] { why_on_host(asked, found); });
  };
  EXPECT_EQ(refused({}),
            "\"sluice\": {\"device\": \"auto\"}: the driver fails; mend that, or train on the CPU "
            "with \"device\": \"host\"");
  EXPECT_EQ(refused({config::ComputeDevice::Kind::cuda}),
            "\"sluice\": {\"device\": \"cuda\"}: the driver fails");
  found.fails = false;
  EXPECT_EQ(why_on_host({}, found), "the driver fails");
}

}  // namespace
}  // namespace sluice::plan
