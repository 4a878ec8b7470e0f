#pragma once
// AppendFile: an open file that grows by whole texts, so that readers and a resumed run find no
// half of one, except the last after a kill.

#include <cstdint>
#include <string>
#include <utility>

#include "sluice/base/fd.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class AppendFile {
 public:
  // `fd` is open for appending (O_APPEND); the file has `whole_bytes`. `path` is for messages.
  AppendFile(UniqueFd fd, std::string path, std::uint64_t whole_bytes)
      : path_(std::move(path)), fd_(std::move(fd)), whole_bytes_(whole_bytes) {}

  const std::string& path() const { return path_; }
  // True when nothing is in the file yet.
  bool is_empty() const { return whole_bytes_ == 0 && waiting_.empty(); }
  // Appends with one write(). Throws IoError; the text then waits for the next call, which writes
  // it first.
  void append(const std::string& text);

 private:
  std::string path_;
  UniqueFd fd_;
  std::uint64_t whole_bytes_;  // of the file, without a part of a text
  std::string waiting_;        // some hundred bytes a step
  bool is_torn_ = false;       // a write has failed: the file may have a part of a text
};

// Writes all of the text; one write() in practice. Throws IoError.
void write_all(int fd, const std::string& text, const std::string& path);

}  // namespace sluice::train
