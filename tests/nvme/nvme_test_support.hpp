#pragma once
// Helpers of the tests of nvme: the backends of this build, aligned memory, random bytes, mounts
// and child processes. Thread-safe: free functions and values.

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "in_child.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

inline std::vector<BackendKind> built_backends() {
  std::vector<BackendKind> kinds;
#if SLUICE_HAVE_URING
  kinds.push_back(BackendKind::io_uring);
#endif
#if SLUICE_HAVE_AIO
  kinds.push_back(BackendKind::libaio);
#endif
  kinds.push_back(BackendKind::threads);
  return kinds;
}

inline std::string name_of(BackendKind kind) {
  if (kind == BackendKind::io_uring) return "io_uring";
  return kind == BackendKind::libaio ? "libaio" : "threads";
}

// Whether this process can use the backend; if not, `why` has the reason.
inline bool available(BackendKind kind, std::string& why) {
  if (kind == BackendKind::io_uring) return io_uring_available(why);
  if (kind == BackendKind::threads) return true;
  // Probed once: destroying the kernel's context takes 30 ms.
  static std::string why_no_libaio;
  static const bool libaio = libaio_available(why_no_libaio);
  why = why_no_libaio;
  return libaio;
}

struct BackendCase {
  BackendKind kind;
  DirectIo direct;
};

inline std::vector<BackendCase> backend_cases() {
  std::vector<BackendCase> cases;
  for (const BackendKind kind : built_backends()) {
    cases.push_back({kind, DirectIo::automatic});
    cases.push_back({kind, DirectIo::off});
  }
  return cases;
}

inline std::string name_of(const BackendCase& c) {
  return name_of(c.kind) + (c.direct == DirectIo::off ? "_buffered" : "_direct");
}
inline void PrintTo(const BackendCase& c, std::ostream* out) {
  *out << name_of(c);
}

// Skips the test with the reason where the kernel denies the backend.
#define SLUICE_SKIP_WITHOUT(kind)                                   \
  do {                                                              \
    std::string sluice_why;                                         \
    if (!available((kind), sluice_why)) GTEST_SKIP() << sluice_why; \
  } while (false)

// Memory that begins `shift_bytes` behind a multiple of 4096.
class TestBuffer {
 public:
  explicit TestBuffer(std::size_t size_bytes, std::size_t shift_bytes = 0)
      : memory_(static_cast<std::byte*>(
            std::aligned_alloc(4096, (size_bytes + shift_bytes + 4096) / 4096 * 4096))),
        bytes_(memory_.get() + shift_bytes, size_bytes) {}
  std::span<std::byte> bytes() { return bytes_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::span<std::byte> bytes_;
};

inline void fill_random(std::span<std::byte> bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!bytes.empty()) {
    const std::uint64_t word = random();
    const std::size_t count = std::min(bytes.size(), sizeof(word));
    std::memcpy(bytes.data(), &word, count);
    bytes = bytes.subspan(count);
  }
}

inline std::vector<std::byte> random_bytes(std::size_t size_bytes, std::uint64_t seed) {
  std::vector<std::byte> bytes(size_bytes);
  fill_random(bytes, seed);
  return bytes;
}

inline void write_whole_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline std::vector<std::byte> read_whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(in.good() || bytes.empty()) << path;
  return bytes;
}

// Whether two ranges hold equal bytes. A failure does not print the ranges.
inline ::testing::AssertionResult same_bytes(std::span<const std::byte> actual,
                                             std::span<const std::byte> expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " bytes, expected " << expected.size();
  }
  if (actual.empty() || std::memcmp(actual.data(), expected.data(), actual.size()) == 0) {
    return ::testing::AssertionSuccess();
  }
  std::size_t at = 0;
  while (actual[at] == expected[at]) ++at;
  return ::testing::AssertionFailure()
         << "byte " << at << " of " << actual.size() << " is " << std::to_integer<int>(actual[at])
         << ", expected " << std::to_integer<int>(expected[at]);
}

// A file system mounted for a test, where the process may mount.
class ScopedMount {
 public:
  ScopedMount(std::string path, const char* type, const char* options) : path_(std::move(path)) {
    if (::mount("none", path_.c_str(), type, 0, options) != 0) {
      why_not_ = std::string("mount of ") + type + ": " + std::strerror(errno);
    }
  }
  ~ScopedMount() {
    if (why_not_.empty()) ::umount2(path_.c_str(), MNT_DETACH);
  }
  ScopedMount(const ScopedMount&) = delete;
  ScopedMount& operator=(const ScopedMount&) = delete;

  const std::string& why_not() const { return why_not_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  std::string why_not_;
};

// A small ext4 on a loop device with logical blocks of `sector_bytes`, in a file, mounted in a
// folder of a TempDir.
class ScopedExt4 {
 public:
  ScopedExt4(const std::string& dir, std::uint64_t size_bytes, unsigned sector_bytes)
      : mounted_(dir + "/ext4") {
    const std::string image = dir + "/ext4.image";
    std::filesystem::create_directory(mounted_);
    std::ofstream(image).close();
    std::filesystem::resize_file(image, size_bytes);
    device_ = output_of("losetup --find --show --sector-size " + std::to_string(sector_bytes) +
                        " '" + image + "' 2>/dev/null");
    if (device_.empty()) {
      why_not_ = "no loop device can be had";
    } else if (!run("mkfs.ext4 -q -b 4096 " + device_) ||
               !run("mount " + device_ + " '" + mounted_ + "'")) {
      why_not_ = "ext4 on a loop device cannot be mounted";
    }
  }
  ~ScopedExt4() {
    if (why_not_.empty()) ::umount2(mounted_.c_str(), MNT_DETACH);
    if (!device_.empty()) run("losetup --detach " + device_);
  }
  ScopedExt4(const ScopedExt4&) = delete;
  ScopedExt4& operator=(const ScopedExt4&) = delete;

  const std::string& why_not() const { return why_not_; }
  std::string file(const std::string& name) const { return mounted_ + "/" + name; }

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  static std::string output_of(const std::string& command) {
    std::string output;
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return output;
    for (int c = 0; (c = std::fgetc(pipe)) != EOF && c != '\n';) output += static_cast<char>(c);
    ::pclose(pipe);
    return output;
  }

  std::string mounted_;
  std::string device_;
  std::string why_not_;
};

using test::deny;
using test::message_of;
using test::run_in_child;

}  // namespace sluice::nvme
