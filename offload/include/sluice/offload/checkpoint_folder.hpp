#pragma once
// The folders of full checkpoints below a directory. A folder is step-00000026.tmp while it is
// written, and is renamed to step-00000026 when complete, or to step-00000026.2 and so on when
// there is a checkpoint of that step already. It is renamed back before it is removed. Each has the
// format of a swap directory (swap_store.hpp). These functions know names and which folders exist;
// SwapStore knows the contents.
//
// Thread-safe: values and free functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace sluice::offload {

struct CheckpointFolder {
  std::string path;
  std::int64_t step = 0;
  int number = 1;  // 2 in step-00000026.2
  // Being written or removed, or left by a run that was killed meanwhile.
  bool is_draft = false;
};

std::string checkpoint_path(const std::string& directory, std::int64_t step);
std::string checkpoint_draft_path(const std::string& directory, std::int64_t step);
// checkpoint_path() when nothing has this name, else the first free one with a number.
std::string free_checkpoint_path(const std::string& directory, std::int64_t step);

// Parses the last part of `path`; empty when it is not a checkpoint's name. The folder need not
// exist.
std::optional<CheckpointFolder> checkpoint_folder_of(const std::string& path);
// The folder of a checkpoint that `path`, which need not exist, is or lies in; empty when there is
// none. The folder holds files of states. Follows links. Throws IoError.
std::string checkpoint_around(const std::string& path);

struct RemovedCheckpoint {
  std::error_code error;          // the last one
  std::vector<std::string> left;  // paths of what is not Sluice's
};
// Removes the folder of a checkpoint: Sluice's files in it and in its folders of ranks, as far as
// possible, then the folders that are empty. Links are removed, and their targets stay. A reader
// of the checkpoint is not asked.
RemovedCheckpoint remove_checkpoint_files(const std::string& folder);
// The checkpoint folders below `directory`, oldest step first, whatever they contain. Empty when
// `directory` cannot be read.
std::vector<CheckpointFolder> list_checkpoint_folders(const std::string& directory);

}  // namespace sluice::offload
