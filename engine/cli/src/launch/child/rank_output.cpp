#include "launch/child/rank_output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/written.hpp"

namespace sluice::cli {

namespace {

constexpr std::size_t kMostLineBytes = 64U << 10U;
constexpr std::size_t kLastLines = 20;

// Does not block: nobody may ever read a FIFO, and its writer would wait.
UniqueFd open_log(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISCHR(info.st_mode))
    throw StorageError(path,
                       "is neither a regular file nor a character device: remove it, or "
                       "choose another --log-dir");
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), kFlags | O_NONBLOCK, 0666), path));
  SLUICE_SYSCALL(::fcntl(fd.get(), F_SETFL, O_APPEND), path);  // writes to a terminal wait for it
  return fd;
}

}  // namespace

RankOutput::RankOutput(std::string prefix, const std::string& log_path, WriteLines write)
    : prefix_(std::move(prefix)), log_path_(log_path), write_(std::move(write)) {
  if (!log_path.empty()) log_ = open_log(log_path);
}

void RankOutput::take(Stream stream, std::string_view bytes) {
  std::exception_ptr log_error;
  try {
    if (log_) write_all(log_.get(), bytes, log_path_);
  } catch (const IoError&) {
    log_error = std::current_exception();
    log_.reset();
  }
  Line& line = lines_[static_cast<std::size_t>(stream)];
  for (const char byte : bytes) {
    const bool second_half = byte == '\n' && line.after_return;  // of "\r\n"
    line.after_return = byte == '\r';
    if (second_half) continue;
    if (byte != '\n' && byte != '\r') line.text += byte;
    if (byte == '\n' || byte == '\r' || line.text.size() >= kMostLineBytes) end_line(stream);
  }
  if (log_error) std::rethrow_exception(log_error);
}

void RankOutput::finish() {
  for (const Stream stream : {Stream::out, Stream::err}) {
    if (!lines_[static_cast<std::size_t>(stream)].text.empty()) end_line(stream);
  }
}

void RankOutput::end_line(Stream stream) {
  std::string& text = lines_[static_cast<std::size_t>(stream)].text;
  write_(stream, prefix_ + text + "\n");
  last_lines_.push_back(std::move(text));
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  text.clear();
}

}  // namespace sluice::cli
