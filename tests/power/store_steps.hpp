#pragma once
// A small swap store whose bytes follow from the step: what store_writer.cpp writes, and the test
// of loss of power compares.
//
// Thread-compatible: callers synchronise.

#include <memory>
#include <string>
#include <vector>

#include "offload/swap/written_steps.hpp"
#include "sluice/base/error.hpp"

namespace sluice::power {

using offload::test::content_of;
using offload::test::make_engine;
using offload::test::update_all;

inline std::vector<offload::ShardSpec> shards() {
  return {{"h.0/low", 20'000}, {"h.0/moment1", offload::kChecksumChunkBytes + 700}, {"norm", 100}};
}

inline Durability durability_named(const std::string& name) {
  if (name == "power") return Durability::power;
  return name == "process" ? Durability::process : Durability::none;
}

inline std::string metadata_of(std::int64_t step) {
  return "{\"step\": " + std::to_string(step) + "}";
}

inline std::unique_ptr<offload::SwapStore> open_or_create(const offload::SwapPlace& place,
                                                          nvme::IoEngine& io,
                                                          Durability durability) {
  using offload::SwapStore;
  return SwapStore::holds_committed(place.directory)
             ? SwapStore::open(place, io, durability, nvme::DirectIo::automatic)
             : SwapStore::create(place, io, shards(), durability, nvme::DirectIo::automatic);
}

// Reads everything and compares checksums, as a resumed run does. Throws StorageError when the
// store does not hold what its manifest says. Then true when the bytes are those of `step`.
inline bool holds_step(offload::SwapStore& store, std::int64_t step) {
  bool same = store.committed_metadata() == metadata_of(step);
  for (std::size_t i = 0; i < store.shard_count(); ++i) {
    std::vector<std::byte> bytes(store.shard(i).size_bytes);
    store.begin_read(i, 0, bytes).finish();
    store.check(i, 0, bytes);
    same = same && bytes == content_of(store.shard(i), step);
  }
  return same;
}

}  // namespace sluice::power
