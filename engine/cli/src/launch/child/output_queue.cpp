#include "launch/child/output_queue.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sluice::cli {

namespace {

// poll() promises room for this many bytes of a pipe. Lines of several ranks, and of their two
// streams on one terminal, stay whole: a part ends with a line.
constexpr std::size_t kMostPartBytes = PIPE_BUF;

}  // namespace

// A description of its own, which does not block: O_NONBLOCK on the caller's would hold for every
// process that shares it, such as the shell. Other files than pipes and terminals, and those that
// cannot be opened again, are written to as they are, in parts for which poll() found room.
OutputQueue::Target OutputQueue::open_target(int fd) {
  struct stat info = {};
  const bool is_known = ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || ::isatty(fd) == 1);
  if (!is_known) return {fd, UniqueFd()};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd own(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const int target = own ? own.get() : fd;
  return {target, std::move(own)};
}

OutputQueue::OutputQueue(int out_fd, int err_fd)
    : targets_{open_target(out_fd), open_target(err_fd)} {}

void OutputQueue::push(Stream stream, std::string_view lines) {
  if (error_ != 0) return;
  size_bytes_ += lines.size();
  const bool joins = !parts_.empty() && parts_.back().stream == stream &&
                     parts_.back().bytes.size() + lines.size() <= kMostPartBytes;
  if (joins) {
    parts_.back().bytes += lines;
  } else {
    parts_.push_back({stream, std::string(lines)});
  }
}

void OutputQueue::flush() {
  while (!parts_.empty()) {
    pollfd ready = awaited();
    if (::poll(&ready, 1, 0) <= 0) return;
    Part& part = parts_.front();
    const std::size_t count = std::min(part.bytes.size() - part.done, kMostPartBytes);
    const ssize_t written = ::write(ready.fd, part.bytes.data() + part.done, count);
    if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (written < 0) {
      error_ = errno;
      parts_.clear();
      size_bytes_ = 0;
      return;
    }
    part.done += static_cast<std::size_t>(written);
    size_bytes_ -= static_cast<std::size_t>(written);
    if (part.done == part.bytes.size()) parts_.pop_front();
  }
}

pollfd OutputQueue::awaited() const {
  return {targets_[static_cast<std::size_t>(parts_.front().stream)].fd, POLLOUT, 0};
}

}  // namespace sluice::cli
