#include "saved/checkpoint_directory.hpp"

#include <chrono>
#include <climits>
#include <filesystem>
#include <optional>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include "saved/synced_path.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/host_name.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_directory.hpp"

namespace sluice::train {

namespace fs = std::filesystem;

namespace {

// Else each checkpoint would be the one to find it out, after hours.
void check_length(const std::string& directory) {
  constexpr std::size_t kLongestBelow = 128;  // step-00000026.tmp/rank0-of-2/manifest.json.tmp
  constexpr std::size_t kMost = PATH_MAX - kLongestBelow;
  SLUICE_CHECK(directory.size() <= kMost,
               "the directory of checkpoints has a name of " + std::to_string(directory.size()) +
                   " bytes, and the paths of files in it would be longer than the system takes: "
                   "choose one of at most " +
                   std::to_string(kMost) + " bytes");
}

std::int64_t random_step() {
  std::random_device device;
  return std::uniform_int_distribution<std::int64_t>(1'000'000'000, 999'999'999'999)(device);
}

// A server's client may know the names of a directory from before. It asks again when the directory
// is opened.
bool is_seen(const std::string& directory, const std::string& path) {
  constexpr int kTries = 30;
  constexpr std::chrono::milliseconds kPause{100};
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    if (fs::exists(path, error)) return true;
    (void)fs::directory_iterator(directory, error);
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

}  // namespace

DirectoryMark::DirectoryMark(const std::string& directory) {
  const std::int64_t step = random_step();
  path_ = offload::checkpoint_draft_path(directory, step);
  text_ = models::pack_texts({std::to_string(step), host_name()});
  std::error_code error;
  fs::create_directory(path_, error);
  if (error) throw IoError(error.value(), "create a folder in the directory", directory);
}

DirectoryMark::~DirectoryMark() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::string find_why_not_shared(const std::string& directory, const std::string& text, int rank) {
  const std::vector<std::string> mark = models::unpack_texts(text);
  if (is_seen(directory, offload::checkpoint_draft_path(directory, std::stoll(mark.at(0)))))
    return "";
  std::error_code ignored;
  const std::string here = "rank " + std::to_string(rank) + " on host " + host_name();
  const std::string first = "rank 0 on host " + mark.at(1);
  return "the directory of checkpoints " + fs::absolute(directory, ignored).string() +
         (fs::is_directory(directory, ignored)
              ? " of " + here + " is not that of " + first
              : " is not there for " + here + ", and is there for " + first) +
         ": all ranks need one directory, on a file system that all hosts share";
}

void require_shared_directory(zero::Communicator& ranks, const std::string& directory) {
  std::optional<DirectoryMark> mark;
  const std::string text =
      models::do_on_first(ranks, directory, [&] { return mark.emplace(directory).text(); });
  models::do_on_all(ranks, directory, [&] {
    const std::string why_not = find_why_not_shared(directory, text, ranks.rank());
    if (!why_not.empty()) throw InvalidArgument(why_not);
  });
}

void hold_checkpoint_directory(const std::string& directory, offload::HeldDirectories& held,
                               const offload::LockWait& wait) {
  check_length(directory);
  std::error_code error;
  make_directories(directory, error);
  std::error_code ignored;
  if (error && !fs::is_directory(directory, ignored)) {
    throw IoError(error.value(), "create directory", directory, 0, 0,
                  error == std::errc::permission_denied
                      ? "this user must be allowed to enter the directories above it, and to "
                        "write in the one where it is made"
                      : "checkpoints need a directory, or a name where one can be made");
  }
  if (held.holds(directory)) return;
  held.hold(directory, wait);
  offload::remove_dead_checkpoints(directory);
}

}  // namespace sluice::train
