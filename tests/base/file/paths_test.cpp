#include "sluice/base/file/paths.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

TEST(ReadRegularFile, ReadsWhatEndsAndIsNotTooLong) {
  const test::TempDir directory;
  const std::string path = directory.file("text");
  std::ofstream(path) << std::string(100'000, 'x');
  EXPECT_EQ(read_regular_file(path, 100'000), std::string(100'000, 'x'));
  EXPECT_THROW(read_regular_file(path, 99'999), StorageError);
  EXPECT_THROW(read_regular_file(directory.path(), 100), StorageError);
  EXPECT_THROW(read_regular_file("/dev/zero", 100), StorageError);
  EXPECT_THROW(read_regular_file(directory.file("absent"), 100), IoError);
  const std::string pipe = directory.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_regular_file(pipe, 100), StorageError);
  EXPECT_THROW(check_regular_file(pipe), StorageError);
}

// Such files say that they have no bytes.
TEST(ReadRegularFile, ReadsAFileOfProcToItsEnd) {
  EXPECT_NE(read_regular_file("/proc/self/status", 100'000).find("Threads:"), std::string::npos);
  EXPECT_THROW(read_regular_file("/proc/self/status", 10), StorageError);
}

TEST(FileBehindLinks, IsWhatOpeningWouldMake) {
  const test::TempDir directory;
  const std::string target = directory.file("folder/target");
  fs::create_directory(directory.file("folder"));
  fs::create_symlink("folder/second", directory.file("first"));
  fs::create_symlink("target", directory.file("folder/second"));
  EXPECT_EQ(file_behind_links(directory.file("first")), target) << "which is not there";
  EXPECT_EQ(file_behind_links(target), target);
  fs::create_symlink(target, directory.file("absolute"));
  EXPECT_EQ(file_behind_links(directory.file("absolute")), target);
  fs::create_symlink("loop", directory.file("loop"));
  EXPECT_EQ(file_behind_links(directory.file("loop")), directory.file("loop"));
}

}  // namespace
}  // namespace sluice
