#include "backend/uring_tables.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::nvme {

namespace {

// Slots of each table. Few arenas and files are expected, so slots are searched linearly.
constexpr unsigned kSlots = 256;
// The kernel's limit for one registered buffer (io_uring/rsrc.c).
constexpr std::size_t kMaxSlotBytes = std::size_t{1} << 30U;

std::string explain(const char* what, int error_number) {
  std::string text = std::string(what) + ": " + std::strerror(error_number);
  if (error_number == ENOMEM) {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    text += "; the process may lock " +
            (limit.rlim_cur == RLIM_INFINITY ? std::string("any amount of memory")
                                             : format_bytes(limit.rlim_cur)) +
            " (RLIMIT_MEMLOCK): raise it (ulimit -l, or LimitMEMLOCK of the service)";
  } else if (error_number == EINVAL) {
    text += "; Linux 5.19 or later is needed";
  }
  return text;
}

}  // namespace

// Puts `bytes` into a slot; an empty span empties the slot. Returns 0 or -errno.
int RegisteredMemory::fill(io_uring& ring, std::uint16_t index, std::span<std::byte> bytes) {
  const iovec entry{bytes.data(), bytes.size()};
  const __u64 tag = 0;
  const int result = ::io_uring_register_buffers_update_tag(&ring, index, &entry, &tag, 1);
  return result < 0 ? result : 0;
}

bool RegisteredMemory::add(io_uring& ring, std::span<std::byte> region, std::string& why_not) {
  if (!made_) {
    const int result = ::io_uring_register_buffers_sparse(&ring, kSlots);
    if (result < 0) {
      why_not = explain("table of registered memory", -result);
      return false;
    }
    made_ = true;
    for (unsigned i = kSlots; i > 0; --i) free_.push_back(static_cast<std::uint16_t>(i - 1));
  }
  for (std::size_t at = 0; at < region.size(); at += kMaxSlotBytes) {
    const auto part = region.subspan(at, std::min(kMaxSlotBytes, region.size() - at));
    const int result = free_.empty() ? -ENOSPC : fill(ring, free_.back(), part);
    if (result != 0) {
      why_not =
          explain(("registering " + format_bytes(region.size()) + " of memory").c_str(), -result);
      remove(ring, region);
      return false;
    }
    slots_.push_back({part.data(), part.size(), free_.back()});
    free_.pop_back();
  }
  return true;
}

void RegisteredMemory::remove(io_uring& ring, std::span<std::byte> region) {
  const auto inside = [&](const Slot& slot) {
    return slot.begin >= region.data() && slot.begin < region.data() + region.size();
  };
  for (const Slot& slot : slots_) {
    if (!inside(slot)) continue;
    const int result = fill(ring, slot.index, {});
    if (result != 0) log(LogLevel::error, explain("unregistering memory", -result));
    free_.push_back(slot.index);
  }
  slots_.erase(std::remove_if(slots_.begin(), slots_.end(), inside), slots_.end());
}

std::optional<std::uint16_t> RegisteredMemory::slot_of(const std::byte* data,
                                                       std::uint32_t size_bytes) const {
  for (const Slot& slot : slots_) {
    if (data >= slot.begin && data + size_bytes <= slot.begin + slot.size_bytes) return slot.index;
  }
  return std::nullopt;
}

bool RegisteredFiles::add(io_uring& ring, int fd, std::string& why_not) {
  if (!made_) {
    const int result = ::io_uring_register_files_sparse(&ring, kSlots);
    if (result < 0) {
      why_not = explain("table of registered files", -result);
      return false;
    }
    made_ = true;
    for (unsigned i = kSlots; i > 0; --i) free_.push_back(static_cast<int>(i - 1));
  }
  // The descriptor's own slot is filled again: its number may be another file's by now.
  const std::optional<int> own = slot_of(fd);
  const int index = own ? *own : free_.empty() ? -1 : free_.back();
  const int result =
      index < 0 ? -ENOSPC
                : ::io_uring_register_files_update(&ring, static_cast<unsigned>(index), &fd, 1);
  if (result < 0) {
    why_not = explain("registering a file", -result);
    return false;
  }
  const auto at = static_cast<std::size_t>(fd);
  if (at >= slot_by_fd_.size()) slot_by_fd_.resize(at + 1);
  slot_by_fd_[at].index = index;
  ++slot_by_fd_[at].uses;
  if (!own) free_.pop_back();
  return true;
}

void RegisteredFiles::remove(io_uring& ring, int fd) {
  const std::optional<int> slot = slot_of(fd);
  if (!slot) return;
  Slot& entry = slot_by_fd_[static_cast<std::size_t>(fd)];
  if (--entry.uses > 0) return;
  const int none = -1;
  const int result =
      ::io_uring_register_files_update(&ring, static_cast<unsigned>(*slot), &none, 1);
  if (result < 0) log(LogLevel::error, explain("unregistering a file", -result));
  entry.index = -1;
  free_.push_back(*slot);
}

}  // namespace sluice::nvme
