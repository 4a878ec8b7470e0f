#pragma once
// Registrations with one ring: memory, whose pages are pinned once instead of for every request,
// and files, whose reference is taken once. Both tables are created sparse on first use and filled
// slot by slot.
//
// Confined to thread: the one that submits to the ring.

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sluice::nvme {

class RegisteredMemory {
 public:
  // Pins `region` in slots of at most 1 GiB, completely or not at all. Returns false with the
  // reason in `why_not` when the kernel refuses.
  bool add(io_uring& ring, std::span<std::byte> region, std::string& why_not);
  void remove(io_uring& ring, std::span<std::byte> region);
  // The slot that holds all of [data, data + size_bytes); empty when there is none.
  std::optional<std::uint16_t> slot_of(const std::byte* data, std::uint32_t size_bytes) const;

 private:
  struct Slot {
    const std::byte* begin = nullptr;
    std::size_t size_bytes = 0;
    std::uint16_t index = 0;
  };
  int fill(io_uring& ring, std::uint16_t index, std::span<std::byte> bytes);

  bool made_ = false;
  std::vector<Slot> slots_;
  std::vector<std::uint16_t> free_;
};

class RegisteredFiles {
 public:
  // Puts the open file `fd` into a slot. A descriptor that has a slot keeps it until it has been
  // removed as often as it was added.
  bool add(io_uring& ring, int fd, std::string& why_not);
  void remove(io_uring& ring, int fd);
  std::optional<int> slot_of(int fd) const {
    const auto at = static_cast<std::size_t>(fd);
    if (at >= slot_by_fd_.size() || slot_by_fd_[at].index < 0) return std::nullopt;
    return slot_by_fd_[at].index;
  }

 private:
  struct Slot {
    int index = -1;     // -1: none
    unsigned uses = 0;  // add() less remove()
  };
  bool made_ = false;
  std::vector<Slot> slot_by_fd_;
  std::vector<int> free_;
};

}  // namespace sluice::nvme
