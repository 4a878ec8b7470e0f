#pragma once
// A temporary directory that its destructor removes. It lies below SLUICE_TEST_DIR, else below the
// build's folder: a real disk, while /tmp is a tmpfs on many machines and treats O_DIRECT
// differently.

#include <ftw.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::test {

class TempDir {
 public:
  TempDir() {
    const char* chosen = std::getenv("SLUICE_TEST_DIR");
    std::string pattern =
        (chosen != nullptr ? std::string(chosen) : std::filesystem::current_path().string()) +
        "/sluice-test-XXXXXX";
    std::vector<char> buffer(pattern.begin(), pattern.end());
    buffer.push_back('\0');
    if (::mkdtemp(buffer.data()) == nullptr) throw std::runtime_error("mkdtemp: " + pattern);
    path_ = buffer.data();
  }
  ~TempDir() {
    // Not std::filesystem::remove_all: that of libtorch.so, which a test links, does not work.
    const auto remove = [](const char* path, const struct stat*, int, FTW*) {
      std::remove(path);
      return 0;
    };
    ::nftw(path_.c_str(), remove, 16, FTW_DEPTH | FTW_PHYS);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace sluice::test
