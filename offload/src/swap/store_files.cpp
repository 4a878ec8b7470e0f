#include "swap/store_files.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/written.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/offload/swap_state.hpp"

namespace sluice::offload {
namespace {

constexpr std::string_view kManifestName = "manifest.json";
constexpr std::string_view kManifestDraftName = "manifest.json.tmp";
constexpr std::string_view kPreparedName = "manifest.prepared.json";
constexpr std::string_view kPreparedDraftName = "manifest.prepared.json.tmp";
constexpr std::string_view kRankManifestName = "ranks.json";
constexpr std::string_view kRankManifestDraftName = "ranks.json.tmp";
constexpr std::string_view kLabelName = "stripe.json";
constexpr std::string_view kLabelDraftName = "stripe.json.tmp";
constexpr std::string_view kScratchPrefix = "scratch.";
constexpr std::string_view kSwapSuffix = ".swap";

std::string in_directory(const std::string& directory, std::string_view name) {
  return directory + "/" + std::string(name);
}

constexpr std::string_view kSlotPrefix = "states.";

std::string slot_name(int slot, std::size_t part) {
  return std::string(kSlotPrefix) + std::to_string(slot) +
         (part == 0 ? "" : ".part" + std::to_string(part + 1)) + std::string(kSwapSuffix);
}

bool is_scratch_name(std::string_view name) {
  return name.starts_with(kScratchPrefix) && name.ends_with(kSwapSuffix) &&
         name.size() > kScratchPrefix.size() + kSwapSuffix.size();
}

bool is_dead_name(std::string_view name) {
  return name == kManifestDraftName || name == kPreparedDraftName ||
         name == kRankManifestDraftName || name == kLabelDraftName || is_scratch_name(name);
}

}  // namespace

bool is_part_name(std::string_view name) {
  for (int slot = 0; slot < kSlotCount; ++slot) {
    const std::string begin = std::string(kSlotPrefix) + std::to_string(slot) + ".part";
    if (!name.starts_with(begin) || !name.ends_with(kSwapSuffix)) continue;
    const std::string_view number = name.substr(
        begin.size(), name.size() - std::min(name.size(), begin.size() + kSwapSuffix.size()));
    if (!number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos)
      return true;
  }
  return false;
}

bool is_store_name(std::string_view name) {
  return name == kManifestName || name == kPreparedName || name == kLabelName ||
         name == slot_name(0, 0) || name == slot_name(1, 0) || is_part_name(name) ||
         is_dead_name(name);
}

namespace {

std::vector<StoreFile> list_files(const std::string& directory, bool (*wanted)(std::string_view)) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), &::closedir);
  if (!stream) throw IoError(errno, "opendir", directory);
  std::vector<StoreFile> files;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string_view name = static_cast<const char*>(entry->d_name);
    if (!wanted(name)) continue;
    const std::string path = in_directory(directory, name);
    files.push_back({path, file_disk_bytes(path)});
  }
  if (errno != 0) throw IoError(errno, "readdir", directory);
  std::sort(files.begin(), files.end(),
            [](const StoreFile& a, const StoreFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::string lock_path(const std::string& directory) {
  return in_directory(directory, "lock");
}

std::string manifest_path(const std::string& directory) {
  return in_directory(directory, kManifestName);
}

std::string manifest_draft_path(const std::string& directory) {
  return in_directory(directory, kManifestDraftName);
}

std::string prepared_path(const std::string& directory) {
  return in_directory(directory, kPreparedName);
}

std::string rank_manifest_path(const std::string& directory) {
  return in_directory(directory, kRankManifestName);
}

std::string label_path(const std::string& directory) {
  return in_directory(directory, kLabelName);
}

std::string slot_path(const std::string& directory, int slot, std::size_t part) {
  return in_directory(directory, slot_name(slot, part));
}

bool has_part_files(const std::string& directory) {
  return !list_files(directory, &is_part_name).empty();
}

std::string scratch_path(const std::string& directory, const std::string& name) {
  return in_directory(directory, std::string(kScratchPrefix) + name + std::string(kSwapSuffix));
}

std::string bench_path(const std::string& directory) {
  return in_directory(directory, nvme::kBenchFileName);
}

std::string run_of(const std::string& directory) {
  const bool of_rank = rank_folder_of(directory).has_value();
  return of_rank ? std::filesystem::path(directory).parent_path().string() : directory;
}

std::string how_to_start_over(const std::string& directory) {
  return "remove the run (sluice nvme clean " + run_of(directory) + " --committed) to start over";
}

std::vector<StoreFile> list_store_files(const std::string& directory) {
  return list_files(directory, &is_store_name);
}

std::vector<StoreFile> list_dead_files(const std::string& directory) {
  return list_files(directory, &is_dead_name);
}

std::uint64_t disk_bytes_of(const std::vector<StoreFile>& files) {
  std::uint64_t total_bytes = 0;
  for (const StoreFile& file : files) total_bytes += file.disk_bytes;
  return total_bytes;
}

bool is_regular_file(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return S_ISREG(status.st_mode);
  if (errno == ENOENT) return false;
  throw IoError(errno, "stat", path);
}

bool file_exists(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT) return false;
  throw IoError(errno, "stat", path);
}

bool directory_exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// Links keep their names, except before a "..": behind a link, it is not the folder before it.
std::string absolute_path(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path whole = fs::absolute(path);
  std::error_code error;
  const fs::path plain = whole.lexically_normal();
  if (!fs::exists(whole, error)) return plain.string();
  if (fs::equivalent(plain, whole, error)) return plain.string();
  const fs::path real = fs::weakly_canonical(whole, error);
  return (error ? plain : real).string();
}

bool same_directory(const std::string& a, const std::string& b) {
  std::error_code absent;
  return absolute_path(a) == absolute_path(b) || std::filesystem::equivalent(a, b, absent);
}

std::uint64_t file_disk_bytes(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    return static_cast<std::uint64_t>(status.st_blocks) * kBytesPerStatBlock;
  }
  if (errno == ENOENT) return 0;
  throw IoError(errno, "stat", path);
}

std::uint64_t file_length_bytes(const std::string& path) {
  struct stat status {};
  SLUICE_SYSCALL(::stat(path.c_str(), &status), path);
  return static_cast<std::uint64_t>(status.st_size);
}

namespace {

// FUSE and NFS keep a removed file under such a name until it is closed.
bool holds_nothing_but_removed_files(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(".fuse_hidden", 0) != 0 && name.rfind(".nfs", 0) != 0) return false;
  }
  return !error;
}

}  // namespace

bool remove_empty_folder(const std::string& path) {
  // A server of FUSE hears of a close a moment later.
  constexpr std::chrono::milliseconds kPollInterval{10};
  for (int tries_left = 100;; --tries_left) {
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
    if (errno == EBUSY || errno == ENOTDIR) return false;  // a mount point, or a link to a folder
    if (errno != ENOTEMPTY && errno != EEXIST) throw IoError(errno, "rmdir", path);
    if (tries_left == 0 || !holds_nothing_but_removed_files(path)) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
}

void remove_leftovers(const std::string& directory, const std::vector<StoreFile>& files) {
  if (files.empty()) return;
  for (const StoreFile& file : files) remove_file(file.path);
  log(LogLevel::info, directory + ": removed " + counted(files.size(), "file") + " (" +
                          format_bytes(disk_bytes_of(files)) +
                          ") that an earlier run left without having committed them");
}

void check_free_disk(const std::string& directory, std::uint64_t needed_bytes,
                     std::uint64_t reclaimed_bytes) {
  const std::uint64_t free_bytes = checked_add(nvme::free_disk_bytes(directory), reclaimed_bytes);
  if (needed_bytes <= free_bytes) return;
  throw IoError(ENOSPC, "allocating the swap files", directory, 0, 0,
                "needs " + std::to_string(needed_bytes) + " bytes (" + format_bytes(needed_bytes) +
                    "), " + std::to_string(free_bytes) + " bytes (" + format_bytes(free_bytes) +
                    ") are free: free disk space or choose another directory");
}

bool holds_nothing_but_a_lock(const std::string& directory) {
  namespace fs = std::filesystem;
  const fs::path lock = fs::path(lock_path(directory)).filename();
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().filename() != lock) return false;
  }
  return !error;
}

}  // namespace sluice::offload
