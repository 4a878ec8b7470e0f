#include "record/append_file.hpp"

#include <unistd.h>

#include "sluice/base/error.hpp"

namespace sluice::train {

void write_all(int fd, const std::string& text, const std::string& path) {
  // A file system that takes less than one write() gets the rest.
  std::size_t done = 0;
  while (done < text.size()) {
    done += static_cast<std::size_t>(
        SLUICE_SYSCALL(::write(fd, text.data() + done, text.size() - done), path));
  }
}

void AppendFile::append(const std::string& text) {
  waiting_ += text;
  if (is_torn_) SLUICE_SYSCALL(::ftruncate(fd_.get(), static_cast<off_t>(whole_bytes_)), path_);
  is_torn_ = true;
  write_all(fd_.get(), waiting_, path_);
  is_torn_ = false;
  whole_bytes_ += waiting_.size();
  waiting_.clear();
}

}  // namespace sluice::train
