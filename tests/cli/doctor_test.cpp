#include "doctor/doctor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

constexpr const char* kMountinfo =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    "40 27 259:2 /etc/hosts /etc/hosts rw - ext4 /dev/nvme0n1p2 rw\n"
    "41 27 8:1 / /mnt/my\\040data ro,noatime - xfs /dev/sda1 rw\n"
    "42 27 0:50 / /mnt/server rw - nfs4 server:/export rw\n"
    "43 27 0:51 / /run rw - tmpfs tmpfs rw\n"
    "44 27 0:52 / /tmp rw - tmpfs tmpfs rw\n"
    "not a line of mountinfo\n";

TEST(ParseMounts, ReadsTheFieldsOfEveryLine) {
  const std::vector<Mount> mounts = parse_mounts(kMountinfo);
  ASSERT_EQ(mounts.size(), 7U);
  EXPECT_EQ(mounts[1].device_number, "259:2");
  EXPECT_EQ(mounts[1].file_system, "ext4");
  EXPECT_EQ(mounts[1].source, "/dev/nvme0n1p2");
  EXPECT_FALSE(mounts[1].read_only);
  EXPECT_EQ(mounts[3].mount_point, "/mnt/my data");
  EXPECT_TRUE(mounts[3].read_only);
}

TEST(LocalMounts, AreFileSystemsOfThisMachineOnceEach) {
  std::vector<std::string> places;
  for (const Mount& mount : local_mounts(parse_mounts(kMountinfo)))
    places.push_back(mount.mount_point);
  EXPECT_THAT(places, ::testing::ElementsAre("/", "/mnt/my data", "/tmp"));
}

TEST(ProbeDrives, GivesAReasonWhereODirectWasNotHad) {
  for (const DriveRow& drive : probe_drives()) {
    EXPECT_NE(drive.direct, !drive.why_not_direct.empty()) << drive.mount_point;
    EXPECT_LE(drive.free_bytes, drive.total_bytes);
  }
}

TEST(Probes, SayWhyForEveryRow) {
  for (const auto& rows : {probe_cpu_and_memory(), probe_devices(), probe_libraries()}) {
    ASSERT_FALSE(rows.empty());
    for (const DoctorRow& row : rows) EXPECT_FALSE(row.detail.empty()) << row.name;
  }
}

}  // namespace
}  // namespace sluice::cli
