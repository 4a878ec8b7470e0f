#pragma once
// The state that a swap store (swap_store.hpp) keeps on disk, described: its shards, how long a
// commit lasts, what is committed, and what is damaged. Values; nothing here opens a store.
//
// The state of several ranks is a folder for each, DIR/rank0-of-2 and so on, with a store in it,
// and the RankManifest DIR/ranks.json. A step is committed when ranks.json names it: each rank
// first writes its part beside the step before (SwapStore::prepare_commit), then rank 0 replaces
// ranks.json, then the parts of the step before may be overwritten.
//
// Thread-safe: values and free functions without state.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/durability.hpp"

namespace sluice::offload {

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
  std::string metadata;  // the text that was given to commit()
  std::vector<ShardSpec> shards;
  Durability durability = Durability::process;
  std::uint64_t written_bytes = 0;  // SwapStore::written_bytes() at that commit
};

// Which step of two or more ranks is committed, and the digest of each rank's manifest, in rank
// order.
struct RankManifest {
  std::int64_t step = 0;
  std::vector<std::uint64_t> digests;

  int world_size() const { return static_cast<int>(digests.size()); }
};
// Empty when `directory` has none. Throws StorageError when it is damaged, IoError when it or the
// directory cannot be read.
std::optional<RankManifest> load_rank_manifest(const std::string& directory);
// The moment of a commit over ranks. With Durability::power, it survives loss of power. Throws
// InvalidArgument for a step below 0 or fewer than two ranks; then nothing has changed. Throws
// IoError; then it is not certain which of the two is there.
void replace_rank_manifest(const std::string& directory, const RankManifest& manifest,
                           Durability durability);
// Makes what is there survive loss of power. Throws IoError.
void sync_rank_manifest(const std::string& directory);
// Its absence survives loss of power. Does nothing when there is none. Throws IoError.
void remove_rank_manifest(const std::string& directory);

struct RankFolder {
  std::string path;
  int rank = 0;
  int world_size = 1;
};
// DIR/rank0-of-2. Ranks of another number have other folders, so that their states can be read
// while these are written.
std::string rank_folder(const std::string& directory, int rank, int world_size);
// Parses the last part of `path`; empty when it is not a rank's folder.
std::optional<RankFolder> rank_folder_of(const std::string& path);
// The folders of ranks in `directory`, by path, whatever they contain. Links are left out. Empty
// when `directory` cannot be read.
std::vector<RankFolder> list_rank_folders(const std::string& directory);

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
