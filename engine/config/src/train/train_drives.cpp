#include "train/train_drives.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::config {

namespace {

std::string normal(const std::string& path) {
  return std::filesystem::path(path + "/").lexically_normal().string();
}

std::vector<std::string> directories_of(const OffloadConfig& offload) {
  std::vector<std::string> paths = offload.directories;
  for (std::string& path : paths) path = normal(path);
  return paths;
}

// Refuses a directory in both lists: the run would lock it twice.
void check_lists(Checker& checker, const TrainConfig& config) {
  const std::vector<std::string> states = directories_of(config.zero.offload_optimizer);
  const std::vector<std::string> params = directories_of(config.zero.offload_param);
  const bool shared = std::any_of(states.begin(), states.end(), [&](const std::string& path) {
    return std::find(params.begin(), params.end(), path) != params.end();
  });
  if (shared && states != params) {
    checker.add_problem("zero_optimization.offload_param.nvme_path",
                        "shares a directory with that of offload_optimizer, but is not the same "
                        "list: give both the same directories, or none in common");
  }
  for (const auto& [paths, key] :
       {std::pair(&states, "zero_optimization.offload_optimizer.nvme_path"),
        std::pair(&params, "zero_optimization.offload_param.nvme_path")}) {
    std::vector<std::string> sorted = *paths;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) continue;
    checker.add_problem(key, "a directory is named twice; name one directory on each drive");
  }
  const std::vector<unsigned>& weights = config.sluice.io.drive_weights;
  for (const auto& paths : {states, params}) {
    if (checker.wrong("sluice.io.drive_weights") || weights.empty() || paths.empty() ||
        paths.size() == weights.size())
      continue;
    checker.add_problem("sluice.io.drive_weights",
                        std::to_string(weights.size()) + " weights for " +
                            std::to_string(paths.size()) + " directories in nvme_path");
    return;
  }
}

// Refuses one of the run's swap directories as the checkpoint directory: each checkpoint is a swap
// directory itself.
void check_checkpoint_dir(Checker& checker, const TrainConfig& config) {
  if (config.sluice.checkpoints.directory.empty()) return;
  const std::string checkpoints = normal(config.sluice.checkpoints.directory);
  for (const OffloadConfig* offload :
       {&config.zero.offload_optimizer, &config.zero.offload_param}) {
    const std::vector<std::string> paths = directories_of(*offload);
    if (std::find(paths.begin(), paths.end(), checkpoints) == paths.end()) continue;
    checker.add_problem("sluice.checkpoint_dir",
                        "is the nvme_path of the run too; give the checkpoints a directory of "
                        "their own");
    return;
  }
}

}  // namespace

// Printed commands take the directory as an argument, where "-name" would be a flag.
std::string as_argument(const std::string& path) {
  return path.starts_with('-') ? "./" + path : path;
}

// Reads one directory, or a list of directories to stripe over.
void read_nvme_path(Checker& checker, const std::string& key, OffloadConfig& offload) {
  const Json::Value* value = checker.find(key);
  if (value == nullptr) return;
  if (value->isString() && value->asString().empty()) return;  // means an absent key
  std::vector<std::string> paths;
  if (value->isString()) paths.push_back(as_argument(value->asString()));
  if (value->isArray()) {
    for (const Json::Value& path : *value) {
      if (path.isString() && path.asString().find('\0') == std::string::npos)
        paths.push_back(as_argument(path.asString()));
    }
  }
  const bool all_good = !paths.empty() && (value->isString() || paths.size() == value->size()) &&
                        std::find(paths.begin(), paths.end(), "") == paths.end();
  if (!all_good) {
    checker.add_problem(key,
                        "expected a directory, or a list of directories to stripe over, found " +
                            checker.shown(*value));
    return;
  }
  offload.directories = std::move(paths);
}

void read_drives(Checker& checker, SluiceConfig& sluice) {
  if (checker.is_null("sluice.io.drive_weights")) sluice.io.drive_weights.clear();
  if (const Json::Value* weights = checker.find("sluice.io.drive_weights")) {
    sluice.io.drive_weights.clear();
    for (const Json::Value& weight : *weights) {
      if (weight.isUInt() && weight.asUInt() >= 1 && weight.asUInt() <= 64)
        sluice.io.drive_weights.push_back(weight.asUInt());
    }
    if (weights->empty() || sluice.io.drive_weights.size() != weights->size()) {
      checker.add_problem("sluice.io.drive_weights",
                          "expected a list of integers in [1, 64], one for each directory in "
                          "nvme_path, found " +
                              checker.shown(*weights));
    }
  }
  if (checker.is_null("sluice.drive_endurance")) sluice.io.drive_endurance_bytes = 0;
  const Json::Value* endurance = checker.find("sluice.drive_endurance");
  if (endurance == nullptr) return;
  try {
    sluice.io.drive_endurance_bytes =
        endurance->isString() ? parse_bytes(endurance->asString()) : endurance->asUInt64();
  } catch (const std::exception&) {
    sluice.io.drive_endurance_bytes = 0;
  }
  constexpr std::uint64_t kMostBytes = 1'000'000'000'000'000'000;  // an exabyte
  if (sluice.io.drive_endurance_bytes > 0 && sluice.io.drive_endurance_bytes <= kMostBytes) return;
  checker.add_problem("sluice.drive_endurance",
                      "expected bytes that the drive is rated to take in its life, such as "
                      "\"600TB\", found " +
                          checker.shown(*endurance));
}

void check_directories(Checker& checker, const TrainConfig& config) {
  check_lists(checker, config);
  check_checkpoint_dir(checker, config);
}

}  // namespace sluice::config
