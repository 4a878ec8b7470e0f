#pragma once
// What both loops of bare_swap.hpp keep of the blocks on their way: a buffer for each, where it is
// in the file, and which way it goes.

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "bare/bare_swap.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::bench {

inline long checked(long result, const char* what) {
  if (result < 0) throw IoError(static_cast<int>(-result), what, "bare loop");
  return result;
}

struct SwapSlot {
  std::byte* buffer = nullptr;
  std::uint64_t offset_bytes = 0;
  bool reading = false;
};

// Thread-compatible: callers synchronise.
class SwapSlots {
 public:
  explicit SwapSlots(const SwapRange& range)
      : range_(range),
        memory_(static_cast<std::byte*>(std::aligned_alloc(
            2 * kMiB, align_up(std::uint64_t{range.depth} * range.block_bytes, 2 * kMiB)))),
        slots_(range.depth) {
    if (memory_ == nullptr) throw std::bad_alloc();
    // On huge pages, as ours are: on small ones drives split large blocks. Refused: it is slower.
    static_cast<void>(::madvise(memory_.get(), memory().size(), MADV_HUGEPAGE));
    for (std::size_t i = 0; i < slots_.size(); ++i)
      slots_[i].buffer = memory_.get() + i * range.block_bytes;
  }

  const SwapRange& range() const { return range_; }
  std::span<SwapSlot> all() { return slots_; }
  std::span<std::byte> memory() { return {memory_.get(), slots_.size() * range_.block_bytes}; }

  void begin(double seconds) {
    end_ = Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    moved_bytes_ = 0;
  }
  std::uint64_t moved_bytes() const { return moved_bytes_; }

  void next_read(SwapSlot& slot) {
    slot.offset_bytes = next_;
    slot.reading = true;
    next_ += range_.block_bytes;
    if (next_ == range_.size_bytes) next_ = 0;
  }
  // What comes of a slot whose transfer has ended: its write, the next read, or nothing more.
  bool goes_on(SwapSlot& slot, long moved) {
    checked(moved, slot.reading ? "read" : "write");
    if (moved != static_cast<long>(range_.block_bytes)) checked(-EIO, "short transfer");
    moved_bytes_ += range_.block_bytes;
    if (slot.reading) {
      slot.reading = false;
      return true;
    }
    if (Clock::now() >= end_) return false;
    next_read(slot);
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  const SwapRange range_;
  const std::unique_ptr<std::byte, Free> memory_;
  std::vector<SwapSlot> slots_;
  std::uint64_t next_ = 0;
  std::uint64_t moved_bytes_ = 0;
  Clock::time_point end_;
};

}  // namespace sluice::bench
