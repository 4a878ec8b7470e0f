#include "sluice/plan/storage_choices.hpp"

#include <algorithm>
#include <filesystem>

#include "sluice/base/error.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/file_system.hpp"

namespace sluice::plan {

namespace {

// The directories of states and scratch, each once.
std::vector<std::string> directories_of(const Plan& plan) {
  std::vector<std::string> all = plan.directories.states;
  for (const std::string& directory : plan.directories.scratch) {
    if (std::find(all.begin(), all.end(), directory) == all.end()) all.push_back(directory);
  }
  return all;
}

std::vector<std::string> tried_choices(const config::TrainConfig& config,
                                       const std::string& directory) {
  std::error_code ignored;
  const std::filesystem::file_status found = std::filesystem::status(directory, ignored);
  if (found.type() == std::filesystem::file_type::not_found) return {};  // its disk's line says so
  if (!std::filesystem::is_directory(found))
    return {directory + " is no directory: a run needs one"};
  std::string why_buffered;
  try {
    why_buffered = nvme::make_nameless_file(directory).why_buffered();
  } catch (const IoError& error) {
    return {std::string("a run could not write to its directory: ") + error.what()};
  }
  return directory_choices(config, directory, why_buffered);
}

}  // namespace

void refuse_if_strict(const config::TrainConfig& config, const std::string& line) {
  SLUICE_CHECK(!config.sluice.strict, "\"strict\": true does not allow: " + line);
}

std::string backend_choice(const config::TrainConfig& config, const nvme::BackendChoice& backend) {
  // The reason begins with the name of the backend.
  if (backend.why_not_better.empty()) return "I/O by " + std::string(backend.backend->name());
  std::string line = "I/O by " + backend.why_not_better;
  refuse_if_strict(config, line);
  return line;
}

std::vector<std::string> directory_choices(const config::TrainConfig& config,
                                           const std::string& directory,
                                           const std::string& why_buffered) {
  std::vector<std::string> lines;
  std::string caution = nvme::file_system_caution(directory);
  if (!caution.empty()) lines.push_back(std::move(caution));
  if (!why_buffered.empty()) {
    lines.push_back("files in " + directory + " go through the page cache: " + why_buffered);
    refuse_if_strict(config, lines.back());
  }
  if (nvme::is_memory_file_system(directory)) refuse_if_strict(config, lines.front());
  return lines;
}

std::vector<std::string> checkpoint_choices(const config::TrainConfig& config) {
  const std::string& directory = config.sluice.checkpoints.directory;
  if (directory.empty()) return {};
  const std::string existing = existing_part(directory);
  const std::string caution = nvme::file_system_caution(existing);
  if (caution.empty()) return {};
  std::string line = "checkpoints go to " + directory + ": " + caution;
  if (nvme::is_memory_file_system(existing)) refuse_if_strict(config, line);
  return {line};
}

std::string existing_part(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path part = std::filesystem::absolute(path, ignored);
  while (!std::filesystem::exists(part, ignored) && part.has_relative_path())
    part = part.parent_path();
  return part.empty() ? "." : part.string();
}

std::vector<std::string> storage_choices(const Plan& plan) {
  const std::vector<std::string> directories = directories_of(plan);
  if (directories.empty()) return checkpoint_choices(plan.config);
  const config::IoConfig& io = plan.config.sluice.io;
  std::vector<std::string> lines = {backend_choice(
      plan.config,
      nvme::make_backend(nvme::parse_backend(io.backend),
                         static_cast<unsigned>(plan.config.aio.queue_depth),
                         static_cast<unsigned>(plan.schedule.threads.io),
                         io.submit_polling ? nvme::SubmitPolling::on : nvme::SubmitPolling::off))};
  for (const std::string& directory : directories) {
    for (std::string& line : tried_choices(plan.config, directory))
      lines.push_back(std::move(line));
  }
  for (std::string& line : checkpoint_choices(plan.config)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace sluice::plan
