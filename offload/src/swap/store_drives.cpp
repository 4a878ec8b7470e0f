#include "swap/store_drives.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/random_id.hpp"
#include "sluice/base/written.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {

Stripe new_stripe(const SwapPlace& place) {
  Stripe stripe;
  stripe.directories = place.directories();
  SLUICE_CHECK(stripe.directories.size() <= kMaxParts,
               std::to_string(stripe.directories.size()) +
                   " directories to stripe over: at most 64 are possible");
  SLUICE_CHECK(place.weights.empty() || place.weights.size() == stripe.directories.size(),
               std::to_string(place.weights.size()) + " weights for " +
                   std::to_string(stripe.directories.size()) + " directories");
  for (std::size_t i = 0; i < stripe.directories.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      SLUICE_CHECK(!same_directory(stripe.directories[i], stripe.directories[j]),
                   stripe.directories[i] +
                       " is named twice among the directories to stripe over: name one directory "
                       "on each drive");
    }
  }
  if (place.further.empty()) return stripe;
  stripe.store_id = random_id();
  stripe.layout = nvme::StripeLayout(
      place.weights.empty() ? std::vector<unsigned>(stripe.directories.size(), 1) : place.weights,
      nvme::StripeLayout::kDefaultChunkBytes);
  return stripe;
}

bool is_without_descriptors(const IoError& error) {
  return error.code() == std::errc::too_many_files_open ||
         error.code() == std::errc::too_many_files_open_in_system;
}

StoreDrives::StoreDrives(SwapPlace place, DirectoryLock::Mode mode, Durability durability)
    : place_(std::move(place)), mode_(mode), durability_(durability) {
  hold(first());
}

void StoreDrives::hold(const std::string& directory) {
  if (place_.held == nullptr || !place_.held->holds(directory)) {
    own_locks_.emplace_back(directory, mode_);
    return;
  }
  const std::vector<const DirectoryLock*> locks = place_.held->locks_of(directory);
  held_locks_.insert(held_locks_.end(), locks.begin(), locks.end());
}

void StoreDrives::check_still_there() const {
  offload::check_still_there(files_, slot_bytes_, had_all_blocks_);
  for (const DirectoryLock& lock : own_locks_) lock.check_still_there();
  for (const DirectoryLock* lock : held_locks_) lock->check_still_there();
}

void StoreDrives::check_locks() const {
  for (const DirectoryLock& lock : own_locks_) lock.check_has_name();
  for (const DirectoryLock* lock : held_locks_) lock->check_has_name();
}

void StoreDrives::hold_further_for_new() {
  for (const std::string& further : place_.further) {
    hold(further);
    if (const std::optional<Manifest> other = load_manifest(further)) {
      throw StorageError(
          further, "holds a committed run of its own, of step " + std::to_string(other->step) +
                       ": choose another directory, or " + how_to_start_over(further));
    }
  }
  for (const std::string& directory : stripe_.directories)
    check_is_nobodys_part(directory, first());
}

// Else the first commit would be the first to find out, after hours.
void StoreDrives::check_durability() const {
  if (durability_ != Durability::power) return;
  for (const std::string& directory : stripe_.directories) {
    if (can_sync_directory(directory)) continue;
    throw StorageError(directory,
                       "its file system cannot sync a directory (fsync), so no commit there "
                       "survives a loss of power: choose another directory, or \"durability\": "
                       "\"process\"");
  }
}

void StoreDrives::make(std::uint64_t slot_bytes, SlotSet wanted, std::uint64_t manifest_bytes,
                       nvme::DirectIo direct) {
  slot_bytes_ = slot_bytes;
  stripe_ = new_stripe(place_);
  hold_further_for_new();
  check_durability();
  const auto slots = static_cast<std::uint64_t>(std::count(wanted.begin(), wanted.end(), true));
  std::vector<std::vector<StoreFile>> leftovers;
  for (std::size_t part = 0; part < stripe_.directories.size(); ++part) {
    const std::string& directory = stripe_.directories[part];
    leftovers.push_back(list_store_files(directory));
    const std::uint64_t states_bytes =
        checked_mul(slots, stripe_.layout.part_bytes(part, slot_bytes_));
    check_free_disk(directory, checked_add(states_bytes, part == 0 ? manifest_bytes : 0),
                    disk_bytes_of(leftovers.back()));
  }
  // The first directory last: without its label the others' parts seem to be needed, and a run that
  // was killed in between could not be begun again.
  for (std::size_t part = leftovers.size(); part-- > 0;)
    remove_leftovers(stripe_.directories[part], leftovers[part]);
  write_labels(stripe_, LabelState::new_store);
  files_ = open_slot_files(stripe_, wanted, slot_bytes_, direct);
  had_all_blocks_ = have_all_blocks(files_, slot_bytes_);
}

void StoreDrives::mark_committed() {
  if (marked_committed_) return;
  write_labels(stripe_, LabelState::committed);
  marked_committed_ = true;
}

void StoreDrives::open(const Manifest& manifest, SlotSet wanted, nvme::DirectIo direct) {
  const bool reading = mode_ == DirectoryLock::Mode::shared;
  stripe_ = reading ? stripe_to_read(first(), manifest) : stripe_of_committed(place_, manifest);
  if (reading) warn_if_moved(stripe_);
  for (std::size_t part = 1; part < stripe_.directories.size(); ++part)
    hold(stripe_.directories[part]);
  check_durability();
  const StoreLayout layout = layout_of(manifest);
  slot_bytes_ = layout.file_bytes;
  check_committed_files(stripe_, manifest, layout);
  if (reading) {
    files_ = open_slot_files_read_only(stripe_, wanted);
    return;
  }
  for (std::size_t part = 0; part < stripe_.directories.size(); ++part) {
    const std::string& directory = stripe_.directories[part];
    remove_leftovers(directory, list_dead_files(directory));
    check_free_disk(directory, missing_disk_bytes(stripe_, part, wanted, slot_bytes_), 0);
  }
  write_labels(stripe_, LabelState::committed);  // drives may be mounted elsewhere now
  marked_committed_ = true;
  files_ = open_slot_files(stripe_, wanted, slot_bytes_, direct);
  had_all_blocks_ = have_all_blocks(files_, slot_bytes_);
}

void StoreDrives::register_with(nvme::IoEngine& io) {
  for (const std::optional<nvme::StripedFile>& file : files_) {
    if (!file) continue;
    for (const nvme::SwapFile& part : file->parts())
      registrations_.push_back(io.register_file(part));
  }
}

std::string StoreDrives::why_buffered() const {
  for (const std::optional<nvme::StripedFile>& file : files_) {
    if (file && !file->why_buffered().empty()) return file->why_buffered();
  }
  return "";
}

std::uint64_t StoreDrives::file_bytes() const {
  std::uint64_t sum = 0;
  for (const std::optional<nvme::StripedFile>& file : files_) {
    if (!file) continue;
    for (const nvme::SwapFile& part : file->parts()) sum += part.size_bytes();
  }
  return sum;
}

void StoreDrives::check_written() const {
  for (const std::optional<nvme::StripedFile>& file : files_) {
    if (!file) continue;
    for (const nvme::SwapFile& part : file->parts())
      sluice::check_written(part.fd(), part.path(), "make space");
  }
}

void StoreDrives::sync_data() {
  if (sync_failed_) {
    throw StorageError(
        first(),
        "an earlier sync of the states failed, and no later one can tell which bytes the "
        "drive lost: end this run and resume it; what was committed before is whole");
  }
  sync_failed_ = true;  // unless all of it succeeds
  try {
    for (const std::optional<nvme::StripedFile>& file : files_) {
      if (file) file->sync_data();
    }
    check_written();
    for (std::size_t part = 1; part < stripe_.directories.size(); ++part)
      sync_path(stripe_.directories[part]);
  } catch (const IoError& error) {
    sync_failed_ = !is_without_descriptors(error);
    throw;
  }
  sync_failed_ = false;
}

}  // namespace sluice::offload
