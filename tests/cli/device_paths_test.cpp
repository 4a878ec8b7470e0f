// The ways between a drive and device memory, on the host device.

#include "nvme/bench/device_paths.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "sluice/base/error.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "temp_dir.hpp"

namespace sluice::cli {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t kSizeBytes = 4U << 20U;

class DevicePathsTest : public ::testing::Test {
 protected:
  DevicePaths measure(const DevicePathOptions& options, int most_rounds = 100) {
    offload::SwapPlace place(dir_.path());
    return measure_device_paths(*device_, io_, pinned_, place, options,
                                [most_rounds](int rounds) { return rounds < most_rounds; });
  }
  bool directory_is_empty() const { return std::filesystem::is_empty(dir_.path()); }

  // Copies that are slower than any drive here.
  std::unique_ptr<offload::Device> device_ =
      offload::make_host_device({.bandwidth_bytes_per_second = 50e6});
  offload::MemoryPool pinned_{offload::Tier::pinned, offload::kUnlimited,
                              device_->make_pinned_source()};
  nvme::IoEngine io_{nvme::make_backend(nvme::BackendKind::threads, 32, 2).backend, {}};
  const sluice::test::TempDir dir_;
};

std::vector<std::string> names(const DevicePaths& found) {
  std::vector<std::string> all;
  for (const DevicePath& path : found.paths) all.push_back(path.name);
  return all;
}

TEST_F(DevicePathsTest, ComparesEachWayWithTheSlowerOfItsLinks) {
  const DevicePaths found =
      measure({.size_bytes = kSizeBytes, .reads = true, .writes = true, .seconds = 0.01});
  EXPECT_THAT(names(found), ElementsAre("drive to host", "host to device", "drive to device",
                                        "device to host", "host to drive", "device to drive"));
  EXPECT_TRUE(found.bytes_right);
  for (const DevicePath& path : found.paths) {
    EXPECT_THAT(path.rates, SizeIs(3)) << path.name;  // the least, whatever the seconds
    EXPECT_THAT(path.rates, Each(Gt(0.0))) << path.name;
    if (path.is_link) {
      EXPECT_THAT(path.of_bounds, IsEmpty()) << path.name;
      continue;
    }
    EXPECT_THAT(path.of_bounds, SizeIs(3)) << path.name;
  }
  for (const std::size_t copies : {1U, 3U}) {
    for (const double rate : found.paths[copies].rates) EXPECT_LE(rate, 52e6);
  }
  // Not faster than its copies are.
  for (const std::size_t way : {2U, 5U}) {
    for (const double rate : found.paths[way].rates) EXPECT_LE(rate, 52e6);
  }
  EXPECT_TRUE(directory_is_empty());
}

TEST_F(DevicePathsTest, MeasuresWhatWasAskedForUntilItIsStopped) {
  const DevicePaths reads = measure({.size_bytes = kSizeBytes, .seconds = 60}, 1);
  EXPECT_THAT(names(reads), ElementsAre("drive to host", "host to device", "drive to device"));
  EXPECT_THAT(reads.paths[0].rates, SizeIs(1));
  const DevicePaths writes =
      measure({.size_bytes = kSizeBytes, .reads = false, .writes = true, .seconds = 60}, 2);
  EXPECT_THAT(names(writes), ElementsAre("device to host", "host to drive", "device to drive"));
  EXPECT_TRUE(writes.bytes_right);
  EXPECT_THAT(writes.paths[2].of_bounds, SizeIs(2));
}

TEST_F(DevicePathsTest, RefusesASizeOfPartsOfMebibytes) {
  EXPECT_THROW(measure({.size_bytes = kSizeBytes + 4096}), InvalidArgument);
  EXPECT_TRUE(directory_is_empty());
}

}  // namespace
}  // namespace sluice::cli
