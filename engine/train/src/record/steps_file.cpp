#include "record/steps_file.hpp"

#include <charconv>
#include <string_view>
#include <system_error>

namespace sluice::train {

namespace {

std::optional<std::int64_t> step_of(const std::string& line) {
  constexpr std::string_view kBegin = "{\"step\":";
  if (!line.starts_with(kBegin) || !line.ends_with('}')) return {};
  std::int64_t step = 0;
  const char* const end = line.data() + line.size();
  const auto [stopped, problem] = std::from_chars(line.data() + kBegin.size(), end, step);
  if (problem != std::errc() || *stopped != ',' || step < 1) return {};
  return step;
}

}  // namespace

StepsFile::StepsFile(const std::string& directory, std::int64_t committed_step) {
  if (directory.empty()) return;
  make_directory(directory);
  file_.emplace(
      directory + "/steps.jsonl", committed_step,
      LineFormat{
          .number_of = step_of, .has_every_number = true, .setting = "--report", .header = ""});
}

void StepsFile::append(const StepRecord& record) {
  if (file_) file_->append(to_json_line(record) + "\n");
}

void StepsFile::sync() {
  if (file_) file_->sync();
}

void StepsFile::finish() {
  if (file_) file_->finish();
}

}  // namespace sluice::train
