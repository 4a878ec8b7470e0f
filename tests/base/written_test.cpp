// Writes that are whole or an error, on a file system that takes nothing, that is full or whose
// answer comes late.

#include "sluice/base/written.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "captured_log.hpp"
#include "file_text.hpp"
#include "in_child.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "soft_limit.hpp"
#include "temp_dir.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

UniqueFd open_new(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
}

// The errno and the message of the IoError that `write` throws in a child process, where a call on
// the one file that it opens fails with `error_number`; with 0 it succeeds without an effect. A
// write that never ends kills the child.
std::string error_of(long system_call, int error_number, const std::function<void()>& write) {
  return test::run_in_child([&]() -> std::string {
    constexpr unsigned kMostSeconds = 20;
    ::alarm(kMostSeconds);
    const auto file =
        static_cast<unsigned>(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get());
    const unsigned last = system_call == __NR_close ? file + 1 : file;  // a copy is closed first
    test::deny(system_call, error_number, file, last);  // the sanitizer writes to pipes of its own
    try {
      write();
    } catch (const IoError& error) {
      return "errno " + std::to_string(error.code().value()) + ", " + error.what();
    }
    return "no error";
  });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(WriteAll, WritesFromThePositionOn) {
  const test::TempDir directory;
  const std::string path = directory.file("text");
  const UniqueFd fd = open_new(path);
  write_all(fd.get(), "abc", path);
  write_all(fd.get(), "", path);
  write_all(fd.get(), "def", path);
  EXPECT_EQ(test::file_text(path), "abcdef");
  write_all_at(fd.get(), bytes_of("XY"), 2, path);
  EXPECT_EQ(test::file_text(path), "abXYef");
}

// A write() that meets the limit of a file's length takes the bytes up to it.
TEST(WriteAll, WritesTheRestAfterAPart) {
  const test::TempDir directory;
  const std::string said = error_of(__NR_fsync, 0, [&] {
    const test::FileLimit limit(5);
    write_all(open_new(directory.file("a")).get(), "12345678", "a/log");
  });
  EXPECT_TRUE(has(said, "errno " + std::to_string(EFBIG))) << said;
  EXPECT_EQ(test::file_text(directory.file("a")), "12345") << "the first write() took these";
}

TEST(WriteAll, AFileSystemThatWritesNothingIsAnErrorAndNoEndlessLoop) {
  const test::TempDir directory;
  const std::string path = directory.file("text");
  for (const std::string& said :
       {error_of(__NR_write, 0, [&] { write_all(open_new(path).get(), "text", path); }),
        error_of(__NR_pwrite64, 0,
                 [&] { write_all_at(open_new(path).get(), bytes_of("text"), 0, path); }),
        error_of(__NR_pwrite64, 0, [&] { replace_file(path, "text"); })}) {
    EXPECT_TRUE(has(said, "errno " + std::to_string(EIO) + ", " + path)) << said;
    EXPECT_TRUE(has(said, "the file system wrote 0 bytes")) << said;
  }
}

TEST(ReplaceFile, ReplacesTheWholeTextAndALinkButNotItsTarget) {
  const test::TempDir directory;
  const std::string path = directory.file("text");
  const std::string target = directory.file("target");
  test::write_file(target, "kept");
  fs::create_symlink("target", path);
  replace_file(path, "a longer text", {.mode = 0600});
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(test::file_text(path), "a longer text");
  EXPECT_EQ(test::file_text(target), "kept");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  replace_file(path, "", {.draft = directory.file("draft"), .sync = FileSync::fsync});
  EXPECT_EQ(test::file_text(path), "");
  EXPECT_FALSE(fs::exists(directory.file("draft")));
}

TEST(ReplaceFile, AfterAnErrorTheFileIsAsItWasAndTheDraftIsGone) {
  const test::TempDir directory;
  const std::string path = directory.file("text");
  test::write_file(path, "before");
  for (const long call : {__NR_pwrite64, __NR_fsync, __NR_close}) {
    for (const int error_number : {EIO, ENOSPC}) {
      SCOPED_TRACE(std::to_string(call) + ", " + std::to_string(error_number));
      const std::string said = error_of(call, error_number, [&] {
        replace_file(path, "after", {.sync = FileSync::fsync, .advice_if_full = "make space"});
      });
      EXPECT_TRUE(has(said, "errno " + std::to_string(error_number) + ", " + path + ".tmp: "))
          << said;
      EXPECT_EQ(has(said, "make space"), error_number == ENOSPC && call != __NR_fsync) << said;
      EXPECT_EQ(test::file_text(path), "before");
      EXPECT_FALSE(fs::exists(path + ".tmp"));
    }
  }
  fs::create_directory(directory.file("folder"));
  EXPECT_THROW(replace_file(directory.file("folder"), "after"), IoError);
  EXPECT_FALSE(fs::exists(directory.file("folder.tmp")));
}

// As vboxsf and some programs that serve a file system.
TEST(SyncPath, GoesOnWhereAFileSystemHasNoSyncOfDirectoriesAndSaysSoOnce) {
  const test::TempDir directory;
  test::write_file(directory.file("text"), "");
  for (const int error_number : {EINVAL, ENOTSUP}) {
    const std::string said = error_of(__NR_fsync, error_number, [&] {
      const test::CapturedLog log;
      sync_path(directory.path());
      sync_path(directory.path());
      const auto messages = log.messages();
      if (can_sync_directory(directory.path()) || messages.size() != 1)
        throw Error("not said once");
      throw Error(messages.front().text);
    });
    EXPECT_TRUE(has(said, directory.path() + ": its file system cannot sync a directory")) << said;
    EXPECT_TRUE(has(said, "a loss of power may take back")) << said;
    const std::string of_file =
        error_of(__NR_fsync, error_number, [&] { sync_path(directory.file("text")); });
    EXPECT_TRUE(has(of_file, "errno " + std::to_string(error_number))) << of_file;
  }
  const std::string of_drive = error_of(__NR_fsync, EIO, [&] { sync_path(directory.path()); });
  EXPECT_TRUE(has(of_drive, "errno " + std::to_string(EIO))) << of_drive;
  EXPECT_TRUE(can_sync_directory(directory.path()));
}

}  // namespace
}  // namespace sluice
