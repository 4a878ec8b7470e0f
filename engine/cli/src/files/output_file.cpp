#include "files/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/offload/swap_directory.hpp"

namespace sluice::cli {

namespace {

namespace fs = std::filesystem;

// Whether `path` names the input, or the bench file in it. Other names of the file count, and so
// does a file that does not exist yet.
bool is_input(const std::string& path, const std::string& input) {
  std::error_code ignored;
  for (const fs::path& file : {fs::path(input), fs::path(input) / nvme::kBenchFileName}) {
    if (fs::equivalent(path, file, ignored)) return true;
    if (fs::weakly_canonical(fs::absolute(path), ignored) ==
        fs::weakly_canonical(fs::absolute(file), ignored))
      return true;
  }
  return false;
}

}  // namespace

void write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (file) return;
  const int error_number = errno != 0 ? errno : EIO;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) fs::remove(file_behind_links(path), ignored);
  throw IoError(error_number, "write", path);
}

void check_writable(const std::string& flag, const std::string& path,
                    const std::vector<std::string>& inputs, const std::string& what_inputs_are) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  SLUICE_CHECK(!exists || !S_ISDIR(status.st_mode), flag + ": " + path + ": this is a directory");
  if (exists && !S_ISREG(status.st_mode))
    return;  // opening a pipe would be noticed at its other end
  const std::string file = file_behind_links(path);
  for (const std::string& input : inputs)
    SLUICE_CHECK(!is_input(file, input), flag + ": " + path + ": is " + what_inputs_are);
  SLUICE_CHECK(!offload::is_run_file(file),
               flag + ": " + path + ": is part of a training run, and would be replaced");
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!fd) throw IoError(errno, "open", path, 0, 0, "given as " + flag);
  if (!exists) ::unlink(file.c_str());  // a link to it stays
}

}  // namespace sluice::cli
