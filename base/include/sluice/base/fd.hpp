#pragma once
// UniqueFd: the one owner of a file descriptor, and a few operations on open files. UniqueFd is
// move-only and closes the descriptor on destruction. Thread-compatible: callers synchronise.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

namespace sluice {

class UniqueFd {
 public:
  UniqueFd() = default;
  // Takes ownership of `fd`; -1 makes an empty owner.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), is_unshared_(other.is_unshared_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      is_unshared_ = other.is_unshared_;
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  // The descriptor, or -1 when empty. The owner keeps it.
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Closes now. A failing close is logged, with the file's path where /proc tells it, and not
  // thrown: Linux releases the descriptor either way. Who needs to know syncs the file before.
  void reset() noexcept;

 private:
  friend UniqueFd open_unshared(const std::string& path, int flags, mode_t mode);

  int fd_ = -1;
  bool is_unshared_ = false;  // of open_unshared()
};

// Whether `path` still names the open file `fd`; false after the file was removed or replaced.
// Throws IoError when the system does not tell. Thread-safe.
bool is_file_at(int fd, const std::string& path);

// The content of an open file, from its current position to its end. `path` is for messages. Throws
// StorageError when the file is not regular or longer than `most_bytes`, IoError when reading
// fails. Thread-safe.
std::string read_regular_file(int fd, const std::string& path, std::uint64_t most_bytes);

}  // namespace sluice
