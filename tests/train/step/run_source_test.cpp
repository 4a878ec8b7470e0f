// Swap directories that are not there, or that the system does not reach.

#include "sluice/train/run_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <string>

#include "in_child.hpp"
#include "temp_dir.hpp"

namespace sluice::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string said_of(const std::string& directory, Resume resume, int error_number = 0) {
  config::TrainConfig config;
  config.zero.offload_optimizer.device = config::OffloadConfig::Device::nvme;
  config.zero.offload_optimizer.directories = {directory};
  return test::run_in_child([&]() -> std::string {
    if (error_number != 0) {
      test::deny(__NR_newfstatat, error_number);
      test::deny(__NR_statx, error_number);
    }
    check_directories(config, plan::Placement::configured, resume);
    return "nothing";
  });
}

TEST(CheckDirectories, AnAbsentOneIsToBeMadeOrMounted) {
  const test::TempDir dir;
  EXPECT_EQ(said_of(dir.path(), Resume::no), "nothing");
  const std::string absent = dir.file("swap");
  EXPECT_THAT(said_of(absent, Resume::no),
              HasSubstr("must name an existing directory: create it on the drive to swap to"));
  EXPECT_THAT(said_of(absent, Resume::yes),
              AllOf(HasSubstr("(mount its drive; for a run that has not begun, create it"),
                    Not(HasSubstr("must name"))));
}

// As below a server that has ended, or on a drive that was lost.
TEST(CheckDirectories, OneThatDoesNotAnswerIsNotToBeMade) {
  const test::TempDir dir;
  for (const int error_number : {EIO, ENOTCONN, ESTALE}) {
    for (const Resume resume : {Resume::no, Resume::yes})
      EXPECT_THAT(said_of(dir.path(), resume, error_number),
                  AllOf(HasSubstr(dir.path()), HasSubstr("its drive or its server fails"),
                        HasSubstr("mount it again"), Not(HasSubstr("create"))));
  }
}

}  // namespace
}  // namespace sluice::train
