#include "slot_files.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"

namespace sluice::offload {
namespace {

// Writes that share a block must not be in flight together, and shards start at kShardAlignment.
void check_alignment(const nvme::SwapFile& file) {
  if (file.offset_alignment() <= kShardAlignment) return;
  throw StorageError(file.path(), "direct I/O needs offsets at multiples of " +
                                      std::to_string(file.offset_alignment()) +
                                      " bytes here, shards start at multiples of " +
                                      std::to_string(kShardAlignment) +
                                      ": switch direct I/O off, or choose another directory");
}

}  // namespace

std::string how_to_start_over(const std::string& directory) {
  return "delete " + manifest_path(directory) + " and the states.*.swap files beside it";
}

void check_committed_files(const std::string& directory, const Manifest& manifest,
                           const StoreLayout& layout) {
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ManifestShard& shard = manifest.shards[i];
    const std::string path = slot_path(directory, shard.slot);
    const std::string holds = "it holds shard \"" + shard.spec.name + "\" of the committed step " +
                              std::to_string(manifest.step) + ": restore it from a copy, or " +
                              how_to_start_over(directory) + " to start over";
    if (!file_exists(path)) throw StorageError(path, "is absent, but " + holds);
    const std::uint64_t length_bytes = file_length_bytes(path);
    const std::uint64_t end_bytes = layout.offset_bytes[i] + shard.spec.size_bytes;
    if (length_bytes < end_bytes) {
      throw StorageError(path, "is cut off: it has " + std::to_string(length_bytes) +
                                   " bytes, at least " + std::to_string(end_bytes) +
                                   " are needed; " + holds);
    }
  }
}

std::uint64_t missing_disk_bytes(const std::string& directory, SlotSet wanted,
                                 std::uint64_t file_bytes) {
  std::uint64_t missing_bytes = 0;
  for (int slot = 0; slot < kSlotCount; ++slot) {
    if (!wanted.at(index_of_slot(slot))) continue;
    const std::uint64_t there_bytes = file_disk_bytes(slot_path(directory, slot));
    missing_bytes += file_bytes - std::min(file_bytes, there_bytes);
  }
  return missing_bytes;
}

SlotFiles open_slot_files(const std::string& directory, SlotSet wanted, std::uint64_t file_bytes,
                          nvme::DirectIo direct) {
  SlotFiles files;
  std::vector<std::string> created;
  try {
    for (int slot = 0; slot < kSlotCount; ++slot) {
      if (!wanted.at(index_of_slot(slot))) continue;
      const std::string path = slot_path(directory, slot);
      if (!file_exists(path)) created.push_back(path);
      auto& file = files.at(index_of_slot(slot));
      file.emplace(path, nvme::OpenMode::create, direct);
      check_alignment(*file);
      // Not repeated where all is there: XFS wants the blocks free a second time.
      if (file_length_bytes(path) < file_bytes || file_disk_bytes(path) < file_bytes) {
        file->allocate(file_bytes);
      }
    }
  } catch (...) {
    for (const std::string& path : created) remove_file_quietly(path);
    throw;
  }
  return files;
}

void check_still_there(const SlotFiles& files, std::uint64_t file_bytes) {
  constexpr const char* kAdvice =
      "; what the run had written there is lost: begin anew, or resume from a checkpoint, and keep "
      "other programs away from the swap directory";
  for (const std::optional<nvme::SwapFile>& file : files) {
    if (!file) continue;
    if (!is_file_at(file->fd(), file->path())) {
      throw IoError(
          ENOENT, "commit", file->path(), 0, 0,
          std::string("the file was removed or replaced while the run used it") + kAdvice);
    }
    const std::uint64_t length = file->size_bytes();
    if (length < file_bytes) {
      throw IoError(EIO, "commit", file->path(), 0, 0,
                    "the file was cut from " + format_bytes(file_bytes) + " to " +
                        format_bytes(length) + " while the run used it" + kAdvice);
    }
  }
}

SlotFiles open_slot_files_read_only(const std::string& directory, SlotSet wanted) {
  SlotFiles files;
  for (int slot = 0; slot < kSlotCount; ++slot) {
    if (!wanted.at(index_of_slot(slot))) continue;
    files.at(index_of_slot(slot))
        .emplace(slot_path(directory, slot), nvme::OpenMode::read_only, nvme::DirectIo::automatic);
  }
  return files;
}

}  // namespace sluice::offload
