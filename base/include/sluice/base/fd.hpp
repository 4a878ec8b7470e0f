#pragma once
// The one owner of a file descriptor. Move-only; closes on destruction.
// Thread-compatible: callers synchronise.

#include <cstdint>
#include <string>
#include <utility>

namespace sluice {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  // The descriptor, or -1 when empty. Stays owned.
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Closes now. A failing close is logged, not thrown: the descriptor is gone either way.
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// Whether `path` still names the open file `fd`: it was neither removed nor replaced. Throws
// IoError when that cannot be told. Thread-safe.
bool is_file_at(int fd, const std::string& path);

// Throws StorageError(path) where it is no regular file, whose end may never come, and IoError
// where that cannot be told. Thread-safe.
void check_regular_file(const std::string& path);

// The whole of an open file. Throws StorageError(path) where it is no regular file or
// is longer than `most_bytes`; IoError where reading fails. Thread-safe.
std::string read_regular_file(int fd, const std::string& path, std::uint64_t most_bytes);
// The same, opened for it; IoError where that fails.
std::string read_regular_file(const std::string& path, std::uint64_t most_bytes);

// The first of steps.1.jsonl, steps.2.jsonl, ... that is not there, for a `path` steps.jsonl.
// Thread-safe.
std::string free_numbered_path(const std::string& path);

}  // namespace sluice
