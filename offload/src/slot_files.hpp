#pragma once
// The two slot files of a store: whether they hold what a manifest says, and opening them.
// Thread-safe: free functions without state.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "manifest.hpp"
#include "sluice/nvme/file.hpp"
#include "store_files.hpp"

namespace sluice::offload {

using SlotFiles = std::array<std::optional<nvme::SwapFile>, kSlotCount>;
using SlotSet = std::array<bool, kSlotCount>;

inline std::size_t index_of_slot(int slot) {
  return static_cast<std::size_t>(slot);
}

// "delete DIR/manifest.json and ...", for messages.
std::string how_to_start_over(const std::string& directory);

// Throws StorageError when a committed shard is not wholly inside its file.
void check_committed_files(const std::string& directory, const Manifest& manifest,
                           const StoreLayout& layout);

// Bytes that open_slot_files has to allocate.
std::uint64_t missing_disk_bytes(const std::string& directory, SlotSet wanted,
                                 std::uint64_t file_bytes);
// Opens the wanted files at full length with all blocks; on failure removes those that it created.
SlotFiles open_slot_files(const std::string& directory, SlotSet wanted, std::uint64_t file_bytes,
                          nvme::DirectIo direct);
// Throws IoError when a file was removed, replaced or cut short by somebody else since it was
// opened: what was written to it is lost when the run ends.
void check_still_there(const SlotFiles& files, std::uint64_t file_bytes);
SlotFiles open_slot_files_read_only(const std::string& directory, SlotSet wanted);

}  // namespace sluice::offload
