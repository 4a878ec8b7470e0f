#pragma once
// StoreDrives: the directories of a store, held by their locks, and its slot files over them.
// SwapStore knows which shards these files hold, and which are committed.
//
// Thread-compatible: callers synchronise; the files may be used by any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_place.hpp"
#include "swap/manifest.hpp"
#include "swap/slot_files.hpp"
#include "swap/stripe.hpp"

namespace sluice::offload {

// The stripe of a new store, with a new store_id. Throws InvalidArgument when a directory is named
// twice, or when the number of weights differs from that of directories.
Stripe new_stripe(const SwapPlace& place);

// Whether this process lacked a file descriptor: no drive was asked, and nothing is lost.
bool is_without_descriptors(const IoError& error);

class StoreDrives {
 public:
  // Holds the first directory.
  StoreDrives(SwapPlace place, DirectoryLock::Mode mode, Durability durability);

  // New slot files of `slot_bytes`, after what a killed run left has been removed. Nothing is
  // removed anywhere before it is known that there is room everywhere. Throws StorageError when
  // another run needs one of the directories, and with Durability::power where one cannot be
  // synced; IoError.
  void make(std::uint64_t slot_bytes, SlotSet wanted, std::uint64_t manifest_bytes,
            nvme::DirectIo direct);
  // Those that `manifest` is about; exclusive: to go on with, `wanted` are made where they are not.
  // Throws StorageError when they are not all there, and as make() for Durability::power.
  void open(const Manifest& manifest, SlotSet wanted, nvme::DirectIo direct);
  // Both together: without it every request takes a reference to its file, which needs no word.
  void register_with(nvme::IoEngine& io);

  // Before the first commit: the labels say from then on that the parts are needed.
  void mark_committed();

  const SwapPlace& place() const { return place_; }
  const std::string& first() const { return place_.directory; }
  const Stripe& stripe() const { return stripe_; }
  const nvme::StripedFile& file(int slot) const { return *files_.at(index_of_slot(slot)); }
  // Empty, or why the files are not opened with O_DIRECT.
  std::string why_buffered() const;
  std::uint64_t file_bytes() const;  // of all files
  // Throws IoError when a file was removed, replaced or cut short meanwhile, and StorageError when
  // the lock of a directory was removed or replaced.
  void check_still_there() const;
  // DirectoryLock::check_has_name() of all directories.
  void check_locks() const;
  // check_written() of base, for all files. Throws IoError.
  void check_written() const;
  // fdatasync and check_written() of the files, and fsync of the directories but the first. Throws
  // IoError. Once a drive has failed it throws StorageError: the kernel tells a lost write once, so
  // that a second sync could succeed without the bytes.
  void sync_data();

 private:
  void hold(const std::string& directory);
  void hold_further_for_new();
  void check_durability() const;

  const SwapPlace place_;
  const DirectoryLock::Mode mode_;
  const Durability durability_;
  std::vector<DirectoryLock> own_locks_;
  std::vector<const DirectoryLock*> held_locks_;  // of place_.held
  // Constant after make or open.
  Stripe stripe_;
  std::uint64_t slot_bytes_ = 0;  // of each slot, over all drives
  bool marked_committed_ = false;
  bool sync_failed_ = false;
  bool had_all_blocks_ = false;  // when they were opened: there is a file system that counts them
  SlotFiles files_;
  std::vector<nvme::Registration> registrations_;  // end before the files are closed
};

}  // namespace sluice::offload
