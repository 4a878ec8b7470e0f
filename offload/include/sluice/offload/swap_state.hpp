#pragma once
// The state that a swap store (swap_store.hpp) keeps on disk, described: its shards, how long a
// commit lasts, what is committed, and what is damaged. Values; nothing here opens a store.
//
// Thread-safe: values and a free function without state.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace sluice::offload {

// The events that a committed step survives. process: a killed process. power: loss of power too
// (fdatasync of the data, then manifest, rename, fsync of the directory). none: nothing.
enum class Durability { process, power, none };

struct ShardSpec {
  std::string name;              // unique, at most 255 bytes
  std::uint64_t size_bytes = 0;  // at least 1
};

// Each chunk of this size has a checksum (XXH3, 64 bits), and so has a shorter last chunk.
inline constexpr std::uint64_t kChecksumChunkBytes = 1U << 20U;
// The checksum of one chunk, by the fastest kernel that the processor supports.
std::uint64_t checksum_of(std::span<const std::byte> bytes);

// The content of a manifest, read without opening the store.
struct CommittedState {
  std::int64_t step = 0;
  std::string metadata;  // the JSON text that was given to commit()
  std::vector<ShardSpec> shards;
  Durability durability = Durability::process;
  std::uint64_t written_bytes = 0;  // SwapStore::written_bytes() at that commit
};

// Consecutive chunks of one shard that are damaged in the same way.
struct DamagedRange {
  std::string shard;
  std::string path;
  std::uint64_t offset_bytes = 0;  // within the shard
  std::uint64_t size_bytes = 0;
  std::uint64_t file_offset_bytes = 0;
  std::string why;  // "differs from its checksum", for people
};

// Called on the caller's thread after every chunk of a check. An exception from it ends the check.
using VerifyProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

}  // namespace sluice::offload
