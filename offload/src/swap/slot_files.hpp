#pragma once
// The two slot files of a store: whether they hold what a manifest says, and opening them.
// Thread-safe: free functions without state.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "sluice/nvme/striped_file.hpp"
#include "swap/manifest.hpp"
#include "swap/store_files.hpp"
#include "swap/stripe.hpp"

namespace sluice::offload {

using SlotFiles = std::array<std::optional<nvme::StripedFile>, kSlotCount>;
using SlotSet = std::array<bool, kSlotCount>;

inline std::size_t index_of_slot(int slot) {
  return static_cast<std::size_t>(slot);
}

// How many of the first bytes of a slot are there, and which of its files ends first.
struct SlotLength {
  std::uint64_t covered_bytes = 0;
  std::string path;
  bool absent = false;
  std::uint64_t file_bytes = 0;  // of the file at `path`
  std::size_t part = 0;          // which of the stripe's it is
};
SlotLength slot_length(const Stripe& stripe, int slot);

// Throws StorageError when a committed shard is not wholly inside its file.
void check_committed_files(const Stripe& stripe, const Manifest& manifest,
                           const StoreLayout& layout);

// Bytes that open_slot_files has to allocate in this directory of the stripe.
std::uint64_t missing_disk_bytes(const Stripe& stripe, std::size_t part, SlotSet wanted,
                                 std::uint64_t file_bytes);
// Opens the wanted files at full length with all blocks; on failure removes those that it created.
SlotFiles open_slot_files(const Stripe& stripe, SlotSet wanted, std::uint64_t file_bytes,
                          nvme::DirectIo direct);
// Whether all blocks of the files are there, as far as the file system says how many they have.
bool have_all_blocks(const SlotFiles& files, std::uint64_t file_bytes);
// Throws IoError when a file was removed, replaced or cut short by somebody else since it was
// opened: what was written to it is lost when the run ends. `had_all_blocks`: also when later
// writes have made it long again, which leaves holes.
void check_still_there(const SlotFiles& files, std::uint64_t file_bytes, bool had_all_blocks);
SlotFiles open_slot_files_read_only(const Stripe& stripe, SlotSet wanted);

}  // namespace sluice::offload
