#include "record/steps_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "sluice/base/error.hpp"
#include "sluice/base/written.hpp"

namespace sluice::train {

namespace {

std::optional<std::int64_t> step_of(const std::string& line) {
  long long step = 0;
  if (std::sscanf(line.c_str(), "{\"step\":%lld", &step) != 1) return {};
  return step;
}

}  // namespace

StepsFile::StepsFile(const std::string& directory, std::int64_t committed_step) {
  if (directory.empty()) return;
  make_directory(directory);
  file_.emplace(directory + "/steps.jsonl", committed_step, step_of, "--report");
}

void StepsFile::append(const StepRecord& record) {
  if (file_) file_->append(to_json_line(record) + "\n");
}

void StepsFile::finish() {
  if (file_) file_->finish();
}

void write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  {
    const UniqueFd fd(SLUICE_SYSCALL(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), temporary));
    write_all(fd.get(), text, temporary);
    check_written(fd.get(), temporary);
  }
  SLUICE_SYSCALL(::rename(temporary.c_str(), path.c_str()), path);
}

}  // namespace sluice::train
