#pragma once
// The manifest of a swap directory: JSON text with a checksum of itself as its last line,
//   {"format": "sluice-swap-store", "version": 1, ...}
//   xxh3-64:0123456789abcdef
// so that a text that was cut or changed anywhere is refused before it is read as JSON.
// Thread-safe: free functions without state.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/written.hpp"
#include "sluice/offload/swap_state.hpp"

namespace sluice::offload {

// Shards start at multiples of this in both slot files, so that no two shards share a block of the
// drive.
inline constexpr std::uint64_t kShardAlignment = 4096;
// In a striped store at multiples of a chunk, which is a stripe's too: so each checksum is of bytes
// of one drive, and tells which is damaged.
enum class Placement { packed, striped };

struct ManifestShard {
  ShardSpec spec;
  int slot = 0;
  std::vector<std::uint64_t> checksums;  // one per chunk of kChecksumChunkBytes, in order
};

struct Manifest {
  std::int64_t step = 0;
  std::string store_id;             // of a striped store, else empty
  std::uint64_t written_bytes = 0;  // by all runs in this directory, until this was committed
  Durability durability = Durability::process;
  std::string metadata;
  std::vector<ManifestShard> shards;
};

std::uint64_t chunk_count(std::uint64_t shard_bytes);

// The offsets of the shards, in the order given, and their sum. Throws InvalidArgument when the sum
// exceeds 64 bits.
struct StoreLayout {
  std::vector<std::uint64_t> offset_bytes;
  std::uint64_t file_bytes = 0;  // of each slot file
};
StoreLayout layout_of(std::span<const ShardSpec> shards, Placement placement);
// Throws InvalidArgument on no shard, an empty, long or repeated name, a size of 0.
void check_shards(std::span<const ShardSpec> shards);
// Disk for a manifest of these shards and the draft that replaces it; an upper bound for metadata
// of up to 64 KiB.
std::uint64_t manifest_disk_bytes(std::span<const ShardSpec> shards);

std::string to_text(const Manifest& manifest);
// `path` is for messages. Throws StorageError that says what is wrong and what to do.
Manifest parse_manifest(std::string_view text, const std::string& path);

// How every manifest of a store begins, of this version or another.
std::string manifest_opening();
// `body` ends with a line's end; the line with its checksum is appended.
std::string with_trailer(std::string body);
// The text before the trailer. Throws StorageError naming `path` when the trailer is not that of
// the text.
std::string_view checked_body(std::string_view text, const std::string& path);
// Identifies a manifest among the others of its directory.
std::uint64_t digest_of(std::string_view text);

// The whole text; empty when the file is absent. Throws IoError when it, or its directory, cannot
// be read.
std::optional<std::string> read_text_file(const std::string& path);
// The manifest with this digest: the committed one, or the one that a commit has prepared
// (SwapStore::prepare_commit). Throws StorageError when neither has it.
std::string path_of_manifest(const std::string& directory, std::uint64_t digest);
// The manifest of path_of_manifest(), without a digest the committed one. Empty when the directory
// holds none. Throws StorageError when it is damaged or no manifest has the digest, IoError when it
// or the directory cannot be read.
std::optional<Manifest> load_manifest(const std::string& directory,
                                      std::optional<std::uint64_t> digest = {});

// Whether the text of a file begins as that of every manifest, whatever follows. Throws IoError.
bool begins_as_manifest(const std::string& path);

// Like load_manifest, but throws StorageError when there is no manifest.
Manifest require_manifest(const std::string& directory, std::optional<std::uint64_t> digest = {});
std::vector<ShardSpec> specs_of(const Manifest& manifest);
StoreLayout layout_of(const Manifest& manifest);

// Writes a draft and renames it over the manifest. Throws IoError; then the old manifest is as it
// was and the draft is gone. The rename survives loss of power only after its directory is synced.
// `durability`: that of the store, for the advice on a full disk.
void replace_manifest(const std::string& directory, std::string_view text, FileSync sync,
                      Durability durability);

}  // namespace sluice::offload
