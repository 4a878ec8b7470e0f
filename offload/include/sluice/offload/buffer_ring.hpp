#pragma once
// BufferRing: a fixed number of equal tiles, handed out as leases. All of a ring's memory is taken
// once, at construction, so that nothing in a step allocates.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {

class BufferRing;

// One tile in use; returns it on destruction. Move-only. Thread-compatible: callers synchronise.
class TileLease {
 public:
  TileLease() = default;
  TileLease(TileLease&& other) noexcept;
  TileLease& operator=(TileLease&& other) noexcept;
  TileLease(const TileLease&) = delete;
  TileLease& operator=(const TileLease&) = delete;
  ~TileLease();

  explicit operator bool() const { return ring_ != nullptr; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class BufferRing;
  TileLease(BufferRing* ring, std::span<std::byte> bytes) : ring_(ring), bytes_(bytes) {}
  void give_back() noexcept;
  BufferRing* ring_ = nullptr;
  std::span<std::byte> bytes_;
};

// Thread-safe. Outlives its leases: the destructor checks that.
class BufferRing {
 public:
  // `count` of at least 1; tiles start at a page. Throws OutOfMemory.
  BufferRing(MemoryPool& pool, std::size_t tile_bytes, std::size_t count,
             const std::string& what_for);
  ~BufferRing();
  BufferRing(const BufferRing&) = delete;
  BufferRing& operator=(const BufferRing&) = delete;

  std::size_t tile_bytes() const { return tile_bytes_; }
  std::size_t count() const { return buffers_.size(); }
  // Registers the tiles with an engine that outlives the ring, so that its transfers are cheaper.
  // Returns an empty text, or in one line why they stay unregistered. Call once, before the first
  // acquire.
  std::string register_with(nvme::IoEngine& io);
  // Blocks until a tile is free.
  TileLease acquire();
  // Does not block; empty when all tiles are out.
  std::optional<TileLease> try_acquire();

 private:
  friend class TileLease;
  void give_back(std::span<std::byte> bytes) noexcept;

  const std::size_t tile_bytes_;
  std::vector<Buffer> buffers_;
  std::vector<nvme::Registration> registrations_;  // end before the buffers
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::span<std::byte>> free_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::offload
