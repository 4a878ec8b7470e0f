#pragma once
// An engine, and shards whose bytes follow from the step, written as whole updates. Without gtest:
// programs that tests start write them too.
// Thread-compatible: callers synchronise.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::offload::test {

// Blocks smaller than a chunk, so that a chunk is several requests.
inline constexpr nvme::IoEngineOptions kSmallBlocks{1U << 16U, 16};

inline std::unique_ptr<nvme::IoEngine> make_engine() {
  return std::make_unique<nvme::IoEngine>(
      nvme::make_backend(nvme::BackendKind::threads, kSmallBlocks.depth, 2).backend, kSmallBlocks);
}

// The bytes of a shard after `step`.
inline std::vector<std::byte> content_of(const ShardSpec& shard, std::int64_t step) {
  std::seed_seq seed(shard.name.begin(), shard.name.end());
  std::vector<std::uint32_t> key(1);
  seed.generate(key.begin(), key.end());
  std::mt19937_64 random(key[0] + static_cast<std::uint64_t>(step) * 1'000'003U);
  std::vector<std::byte> bytes(shard.size_bytes);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
  return bytes;
}

inline void update_shard(SwapStore& store, std::size_t shard, std::int64_t step) {
  const std::vector<std::byte> content = content_of(store.shard(shard), step);
  const std::span<const std::byte> bytes = content;
  std::vector<Ticket> writes;
  for (std::size_t at = 0; at < bytes.size(); at += kChecksumChunkBytes) {
    const std::size_t size = std::min<std::size_t>(kChecksumChunkBytes, bytes.size() - at);
    writes.push_back(store.begin_write(shard, at, bytes.subspan(at, size)));
  }
  finish_all(writes);
  store.finish_update(shard);
}

inline void update_all(SwapStore& store, std::int64_t step) {
  for (std::size_t i = 0; i < store.shard_count(); ++i) update_shard(store, i, step);
}

}  // namespace sluice::offload::test
