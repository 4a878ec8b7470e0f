#include "sluice/offload/checkpoint_folder.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::offload {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kDraftSuffix = ".tmp";

// The number of ".2" and so on: behind a checkpoint's name, of another checkpoint of that step. 0
// for other texts.
int repeat_of(std::string_view suffix) {
  if (!suffix.starts_with('.')) return 0;
  const int number = parse_number<int>(suffix.substr(1)).value_or(0);
  return number >= 2 ? number : 0;
}

}  // namespace

std::string checkpoint_path(const std::string& directory, std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return directory + "/" + name;
}

std::string checkpoint_draft_path(const std::string& directory, std::int64_t step) {
  return checkpoint_path(directory, step) + std::string(kDraftSuffix);
}

std::string free_checkpoint_path(const std::string& directory, std::int64_t step) {
  const std::string first = checkpoint_path(directory, step);
  std::string path = first;
  std::error_code error;
  for (int number = 2; fs::exists(fs::symlink_status(path, error)); ++number)
    path = first + "." + std::to_string(number);
  return path;
}

std::optional<CheckpointFolder> checkpoint_folder_of(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  std::string_view number = name;
  if (!number.starts_with(kPrefix)) return std::nullopt;
  number.remove_prefix(kPrefix.size());
  CheckpointFolder folder;
  folder.path = path;
  folder.is_draft = number.ends_with(kDraftSuffix);
  if (folder.is_draft) number.remove_suffix(kDraftSuffix.size());
  const char* const end = number.data() + number.size();
  const auto [stopped, problem] = std::from_chars(number.data(), end, folder.step);
  if (problem != std::errc() || folder.step < 0) return std::nullopt;
  if (stopped != end) folder.number = repeat_of({stopped, end});
  if (folder.number == 0 || (folder.is_draft && stopped != end)) return std::nullopt;
  return folder;
}

std::vector<CheckpointFolder> list_checkpoint_folders(const std::string& directory) {
  std::vector<CheckpointFolder> found;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code ignored;
    if (!entries->is_directory(ignored)) continue;
    const std::string path = directory + "/" + entries->path().filename().string();
    if (const auto folder = checkpoint_folder_of(path)) found.push_back(*folder);
  }
  const bool is_missing =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !is_missing) throw IoError(error.value(), "list the directory", directory, 0, 0);
  std::sort(found.begin(), found.end(), [](const CheckpointFolder& a, const CheckpointFolder& b) {
    return std::tie(a.step, a.path) < std::tie(b.step, b.path);
  });
  return found;
}

}  // namespace sluice::offload
