#pragma once
// Lines on their way to the launcher's own streams. Writing never blocks, so that a reader who does
// not read keeps the launcher from nothing else. Confined to thread: main.

#include <poll.h>

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "launch/child/rank_output.hpp"
#include "sluice/base/fd.hpp"

namespace sluice::cli {

class OutputQueue {
 public:
  // The descriptors stay the caller's.
  OutputQueue(int out_fd, int err_fd);

  // Takes whole lines; those of both streams keep their order. Does nothing after an error.
  void push(Stream stream, std::string_view lines);
  // Writes as much as the readers take now. Does not block.
  void flush();

  bool is_empty() const { return parts_.empty(); }
  // A megabyte waits: whoever fills the queue should wait too.
  bool is_full() const { return size_bytes_ >= kFullBytes; }
  // For poll(): ready when flush() can go on. Not while the queue is empty.
  pollfd awaited() const;
  // errno of the first write that failed, or 0.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kFullBytes = 1U << 20U;
  struct Target {
    int fd = -1;  // written to: `own`, or the caller's
    UniqueFd own;
  };
  struct Part {
    Stream stream;
    std::string bytes;     // at most kMostPartBytes, unless one line is longer
    std::size_t done = 0;  // of them
  };
  static Target open_target(int fd);

  const Target targets_[2];  // by stream
  std::deque<Part> parts_;
  std::size_t size_bytes_ = 0;  // not written yet
  int error_ = 0;
};

}  // namespace sluice::cli
