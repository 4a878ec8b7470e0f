#pragma once
// The folders of full checkpoints below a directory: step-00000026, and step-00000026.tmp while it
// is being written; renamed when it is whole. Each has the format of a swap directory
// (swap_store.hpp). Only names and what is there; what is in one is SwapStore's.
// Thread-safe: values and free functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::offload {

struct CheckpointFolder {
  std::string path;
  std::int64_t step = 0;
  bool is_draft = false;  // being written, or left by a run that was killed while it wrote it
};

std::string checkpoint_path(const std::string& directory, std::int64_t step);
std::string checkpoint_draft_path(const std::string& directory, std::int64_t step);

// What the last part of `path` says; empty when that is no such name. The folder need not exist.
std::optional<CheckpointFolder> checkpoint_folder_of(const std::string& path);
// Those below `directory`, the oldest step first, whatever is in them. None where it cannot be
// read.
std::vector<CheckpointFolder> list_checkpoint_folders(const std::string& directory);

}  // namespace sluice::offload
