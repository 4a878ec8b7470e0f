#pragma once
// A small swap store whose bytes follow from the step: what store_writer.cpp writes, and the test
// of loss of power compares.
//
// Thread-compatible: callers synchronise.

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::power {

inline std::vector<offload::ShardSpec> shards() {
  return {{"h.0/low", 20'000}, {"h.0/moment1", offload::kChecksumChunkBytes + 700}, {"norm", 100}};
}

inline std::unique_ptr<nvme::IoEngine> make_engine() {
  constexpr nvme::IoEngineOptions kOptions{1U << 16U, 8};
  return std::make_unique<nvme::IoEngine>(
      nvme::make_backend(nvme::BackendKind::threads, kOptions.depth, 2).backend, kOptions);
}

inline Durability durability_named(const std::string& name) {
  if (name == "power") return Durability::power;
  return name == "process" ? Durability::process : Durability::none;
}

inline std::string metadata_of(std::int64_t step) {
  return "{\"step\": " + std::to_string(step) + "}";
}

inline std::vector<std::byte> bytes_of(std::size_t shard, std::int64_t step) {
  std::mt19937_64 random(static_cast<std::uint64_t>(step) * 1'000'003U + shard);
  std::vector<std::byte> bytes(shards()[shard].size_bytes);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
  return bytes;
}

inline std::unique_ptr<offload::SwapStore> open_or_create(const offload::SwapPlace& place,
                                                          nvme::IoEngine& io,
                                                          Durability durability) {
  using offload::SwapStore;
  return SwapStore::holds_committed(place.directory)
             ? SwapStore::open(place, io, durability, nvme::DirectIo::automatic)
             : SwapStore::create(place, io, shards(), durability, nvme::DirectIo::automatic);
}

inline void write_step(offload::SwapStore& store, std::int64_t step) {
  for (std::size_t i = 0; i < store.shard_count(); ++i) {
    const std::vector<std::byte> content = bytes_of(i, step);
    const std::span<const std::byte> bytes = content;
    std::vector<Ticket> writes;
    for (std::size_t at = 0; at < bytes.size(); at += offload::kChecksumChunkBytes) {
      const std::size_t size =
          std::min<std::size_t>(offload::kChecksumChunkBytes, bytes.size() - at);
      writes.push_back(store.begin_write(i, at, bytes.subspan(at, size)));
    }
    finish_all(writes);
    store.finish_update(i);
  }
}

// Reads everything and compares checksums, as a resumed run does. Throws StorageError when the
// store does not hold what its manifest says. Then true when the bytes are those of `step`.
inline bool holds_step(offload::SwapStore& store, std::int64_t step) {
  bool same = store.committed_metadata() == metadata_of(step);
  for (std::size_t i = 0; i < store.shard_count(); ++i) {
    std::vector<std::byte> bytes(store.shard(i).size_bytes);
    store.begin_read(i, 0, bytes).finish();
    store.check(i, 0, bytes);
    same = same && bytes == bytes_of(i, step);
  }
  return same;
}

}  // namespace sluice::power
