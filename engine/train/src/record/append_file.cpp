#include "record/append_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "saved/synced_path.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/written.hpp"

namespace sluice::train {

AppendFile::AppendFile(UniqueFd fd, std::string path, std::uint64_t whole_bytes, Open open,
                       std::string header)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      whole_bytes_(whole_bytes),
      open_(std::move(open)),
      header_(std::move(header)) {}

void AppendFile::append(const std::string& text) {
  waiting_ += text;
  if (waiting_.empty()) return;
  if (!is_file_at(fd_.get(), path_)) {
    fd_ = open_();
    struct stat info {};
    SLUICE_SYSCALL(::fstat(fd_.get(), &info), path_);
    whole_bytes_ = static_cast<std::uint64_t>(info.st_size);
    is_torn_ = has_synced_name_ = false;
    log(LogLevel::warn, path_ +
                            ": was removed or replaced while the run wrote to it; what follows "
                            "is in another file of this name");
  }
  if (is_torn_) SLUICE_SYSCALL(::ftruncate(fd_.get(), static_cast<off_t>(whole_bytes_)), path_);
  const std::string written = whole_bytes_ == 0 ? header_ + waiting_ : waiting_;
  is_torn_ = true;
  write_all(fd_.get(), written, path_);
  is_torn_ = false;
  whole_bytes_ += written.size();
  waiting_.clear();
}

void AppendFile::sync() {
  SLUICE_SYSCALL(::fdatasync(fd_.get()), path_);
  if (has_synced_name_) return;
  sync_names_of_report(std::filesystem::absolute(path_).parent_path());
  has_synced_name_ = true;
}

void AppendFile::finish() {
  append("");
  check_written(fd_.get(), path_);
}

}  // namespace sluice::train
