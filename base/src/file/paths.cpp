#include "sluice/base/file/paths.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"

namespace sluice {

void check_regular_file(const std::string& path) {
  struct stat info {};
  SLUICE_SYSCALL(::stat(path.c_str(), &info), path);
  if (!S_ISREG(info.st_mode)) throw StorageError(path, "is not a regular file");
}

std::string read_regular_file(const std::string& path, std::uint64_t most_bytes) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path));
  return read_regular_file(fd.get(), path, most_bytes);
}

std::string file_behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as many as the kernel follows
  std::filesystem::path file(path);
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(file, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(file, error);
    if (error) break;
    file = file.parent_path() / target;  // an absolute target replaces all of it
  }
  return file.string();
}

std::string free_numbered_path(const std::string& path) {
  const std::filesystem::path whole(path);
  for (int number = 1;; ++number) {
    std::filesystem::path name = whole;
    name.replace_filename(whole.stem().string() + "." + std::to_string(number) +
                          whole.extension().string());
    if (!std::filesystem::exists(name)) return name.string();
  }
}

}  // namespace sluice
