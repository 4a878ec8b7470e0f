#include "sluice/offload/buffer_ring.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <limits>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload {

TileLease::TileLease(TileLease&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}

TileLease& TileLease::operator=(TileLease&& other) noexcept {
  if (this != &other) {
    give_back();
    ring_ = std::exchange(other.ring_, nullptr);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

TileLease::~TileLease() {
  give_back();
}

void TileLease::give_back() noexcept {
  if (ring_ != nullptr) std::exchange(ring_, nullptr)->give_back(std::exchange(bytes_, {}));
}

BufferRing::BufferRing(MemoryPool& pool, std::size_t tile_bytes, std::size_t count,
                       const std::string& what_for)
    : pool_(pool), tile_bytes_(tile_bytes), what_for_(what_for) {
  SLUICE_CHECK(tile_bytes > 0, what_for + ": tiles of 0 bytes");
  SLUICE_CHECK(count > 0, what_for + ": a ring needs at least 1 tile");
  const std::size_t most =
      std::numeric_limits<std::ptrdiff_t>::max() / std::max(tile_bytes, kPageBytes);
  SLUICE_CHECK(count <= most, what_for + ": " + std::to_string(count) + " tiles of " +
                                  std::to_string(tile_bytes) + " bytes fit in no memory");
  buffers_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) add_tile();
}

void BufferRing::add_tile() {
  // A pool aligns to pages from one page on.
  buffers_.push_back(pool_.allocate(std::max(tile_bytes_, kPageBytes), what_for_));
  MutexLock lock(mutex_);
  free_.reserve(buffers_.size());  // so that give_back() never allocates
  free_.push_back(buffers_.back().bytes().first(tile_bytes_));
  changed_.notify_one();
}

BufferRing::~BufferRing() {
  MutexLock lock(mutex_);
  if (free_.size() != buffers_.size()) {
    log(LogLevel::error, "a buffer ring is destroyed while " +
                             std::to_string(buffers_.size() - free_.size()) +
                             " of its tiles are in use");
  }
  assert(free_.size() == buffers_.size());
}

std::string BufferRing::register_with(nvme::IoEngine& io) {
  for (Buffer& buffer : buffers_) {
    nvme::Registration registration = io.register_memory(buffer.bytes());
    if (!registration.active()) {
      registrations_.clear();
      return registration.why_not();
    }
    registrations_.push_back(std::move(registration));
  }
  return "";
}

TileLease BufferRing::acquire() {
  MutexLock lock(mutex_);
  while (free_.empty()) changed_.wait(mutex_);
  const std::span<std::byte> bytes = free_.back();
  free_.pop_back();
  return TileLease(this, bytes);
}

std::optional<TileLease> BufferRing::try_acquire() {
  MutexLock lock(mutex_);
  if (free_.empty()) return std::nullopt;
  const std::span<std::byte> bytes = free_.back();
  free_.pop_back();
  return TileLease(this, bytes);
}

void BufferRing::give_back(std::span<std::byte> bytes) noexcept {
  MutexLock lock(mutex_);
  free_.push_back(bytes);
  changed_.notify_one();
}

}  // namespace sluice::offload
