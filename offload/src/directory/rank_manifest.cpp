// The states of several ranks: ranks.json and the folders of the ranks.

#include <json/json.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "sluice/base/error.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/written.hpp"
#include "sluice/offload/swap_state.hpp"
#include "swap/manifest.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "sluice-ranks";
constexpr int kVersion = 1;
constexpr std::size_t kLeastRanks = 2;  // one rank commits in its swap store alone
constexpr std::string_view kPrefix = "rank";
constexpr std::string_view kMiddle = "-of-";

// The number at the begin of `text`, which is cut off; -1 when there is none.
int take_number(std::string_view& text) {
  int number = -1;
  const auto [stopped, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc()) return -1;
  text.remove_prefix(static_cast<std::size_t>(stopped - text.data()));
  return number;
}

RankManifest parse(std::string_view text, const std::string& path) {
  const std::string_view body = checked_body(text, path);
  std::string why;
  const std::optional<Json::Value> parsed = JsonReader(lenient_json()).read(body, &why);
  if (!parsed) throw StorageError(path, "is not JSON (" + why + ")");
  const Json::Value& root = *parsed;
  try {
    if (!root.isObject() || root["format"].asString() != kFormat)
      throw StorageError(path, "is not the manifest of several ranks");
    if (root["version"].asInt() != kVersion) {
      throw StorageError(path, "has the format version " + root["version"].asString() +
                                   ", this program reads version " + std::to_string(kVersion) +
                                   ": use the version of Sluice that wrote it");
    }
    RankManifest manifest;
    manifest.step = root["step"].asInt64();
    for (const Json::Value& digest : root["digests"]) manifest.digests.push_back(digest.asUInt64());
    if (manifest.digests.size() < kLeastRanks)
      throw StorageError(path, "names fewer than two ranks");
    return manifest;
  } catch (const Json::Exception& error) {
    throw StorageError(path, std::string("has a value of an unexpected type: ") + error.what());
  }
}

}  // namespace

std::optional<RankManifest> load_rank_manifest(const std::string& directory) {
  const std::string path = rank_manifest_path(directory);
  const std::optional<std::string> text = read_text_file(path);
  if (!text) return std::nullopt;
  return parse(*text, path);
}

void replace_rank_manifest(const std::string& directory, const RankManifest& manifest,
                           Durability durability) {
  SLUICE_CHECK(manifest.step >= 0 && manifest.digests.size() >= kLeastRanks,
               "a manifest of " + std::to_string(manifest.world_size()) + " ranks and step " +
                   std::to_string(manifest.step) +
                   ": expected two ranks or more, and a step of 0 or "
                   "later");
  std::string text = "{\"format\": \"" + std::string(kFormat) +
                     "\", \"version\": " + std::to_string(kVersion) +
                     ",\n \"step\": " + std::to_string(manifest.step) + ", \"digests\": [" +
                     join(manifest.digests, ", ");
  text = with_trailer(std::move(text) + "]}\n");
  const bool durable = durability == Durability::power;
  replace_file(rank_manifest_path(directory), text,
               {.mode = kStoreFileMode,
                .sync = durable ? FileSync::fsync : FileSync::none,
                .advice_if_full =
                    "make space and resume: the step that all ranks committed before is whole"});
  if (durable) sync_path(directory);
}

void sync_rank_manifest(const std::string& directory) {
  if (!file_exists(rank_manifest_path(directory))) return;
  sync_path(rank_manifest_path(directory));
  sync_path(directory);
}

void remove_rank_manifest(const std::string& directory) {
  if (!file_exists(rank_manifest_path(directory))) return;
  remove_file(rank_manifest_path(directory));
  sync_path(directory);
}

std::string rank_folder(const std::string& directory, int rank, int world_size) {
  return directory + "/" + std::string(kPrefix) + std::to_string(rank) + std::string(kMiddle) +
         std::to_string(world_size);
}

std::optional<RankFolder> rank_folder_of(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  std::string_view rest = name;
  if (!rest.starts_with(kPrefix)) return std::nullopt;
  rest.remove_prefix(kPrefix.size());
  RankFolder folder{.path = path, .rank = take_number(rest)};
  if (!rest.starts_with(kMiddle)) return std::nullopt;
  rest.remove_prefix(kMiddle.size());
  folder.world_size = take_number(rest);
  if (!rest.empty() || folder.rank < 0 || folder.rank >= folder.world_size) return std::nullopt;
  return folder;
}

std::vector<RankFolder> list_rank_folders(const std::string& directory) {
  std::vector<RankFolder> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (!entry.is_directory(error)) continue;  // a link to a folder is one, as for a run
    const std::string path = directory + "/" + entry.path().filename().string();
    if (const auto folder = rank_folder_of(path)) found.push_back(*folder);
  }
  std::sort(found.begin(), found.end(),
            [](const RankFolder& a, const RankFolder& b) { return a.path < b.path; });
  return found;
}

}  // namespace sluice::offload
