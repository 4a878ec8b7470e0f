#pragma once
// BufferRing: tiles of one size in host memory, handed out as leases. A ring takes all its memory
// at construction, so a step allocates nothing, unless the owner adds a tile.

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

// One tile in use; the destructor returns it to the ring. Move-only. Thread-compatible: callers
// synchronise.
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

// Thread-safe. Outlives its leases: else the destructor logs an error, and the end of such a lease
// is undefined.
class BufferRing {
 public:
  // `count`: at least 1. `pool`: of host memory. Tiles start at a page. Throws OutOfMemory,
  // and InvalidArgument for no tiles or tiles of 0 bytes.
  BufferRing(MemoryPool& pool, std::size_t tile_bytes, std::size_t count,
             const std::string& what_for);
  ~BufferRing();
  BufferRing(const BufferRing&) = delete;
  BufferRing& operator=(const BufferRing&) = delete;

  std::size_t tile_bytes() const { return tile_bytes_; }
  std::size_t count() const { return buffers_.size(); }
  // One more tile, from the pool and not registered. Throws OutOfMemory. Only the thread that
  // calls count() and register_with() calls it.
  void add_tile();
  // Registers the tiles with `io`, whose transfers then cost less. `io` outlives the ring. Returns
  // an empty text, or in one line why the tiles stay unregistered. Call once, before the first
  // acquire.
  std::string register_with(nvme::IoEngine& io);
  // Blocks until a tile is free.
  TileLease acquire();
  // Does not block; empty when every tile is in use.
  std::optional<TileLease> try_acquire();

 private:
  friend class TileLease;
  void give_back(std::span<std::byte> bytes) noexcept;

  MemoryPool& pool_;  // outlives the ring
  const std::size_t tile_bytes_;
  const std::string what_for_;
  std::vector<Buffer> buffers_;
  std::vector<nvme::Registration> registrations_;  // end before the buffers
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::span<std::byte>> free_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::offload
