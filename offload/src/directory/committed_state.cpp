// The functions of SwapStore that do not open the store.

#include <cstdio>
#include <optional>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/written.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap/manifest.hpp"
#include "swap/store_files.hpp"
#include "swap/stripe.hpp"

namespace sluice::offload {

bool SwapStore::holds_committed(const std::string& directory) {
  if (load_manifest(directory)) return true;
  check_is_no_further_part(directory);
  return false;
}

std::uint64_t SwapStore::committed_digest(const std::string& directory) {
  const std::optional<std::string> text = read_text_file(manifest_path(directory));
  if (!text) require_manifest(directory);  // throws
  return digest_of(*text);
}

void SwapStore::settle_commit(const std::string& directory, std::uint64_t digest) {
  const std::string chosen = path_of_manifest(directory, digest);
  if (chosen == manifest_path(directory)) {
    remove_file(prepared_path(directory));
    return;
  }
  SLUICE_SYSCALL(::rename(chosen.c_str(), manifest_path(directory).c_str()), chosen);
  sync_path(directory);
}

CommittedState SwapStore::read_committed(const std::string& directory,
                                         std::optional<std::uint64_t> digest) {
  Manifest manifest = require_manifest(directory, digest);
  CommittedState state;
  state.step = manifest.step;
  state.shards = specs_of(manifest);
  state.metadata = std::move(manifest.metadata);
  state.durability = manifest.durability;
  state.written_bytes = manifest.written_bytes;
  return state;
}

std::uint64_t SwapStore::disk_bytes(std::span<const ShardSpec> shards, Durability durability) {
  const std::uint64_t file_count = durability == Durability::none ? 1 : kSlotCount;
  return checked_add(checked_mul(file_count, layout_of(shards, Placement::packed).file_bytes),
                     manifest_disk_bytes(shards));
}

std::vector<std::string> SwapStore::list_files(const std::string& directory) {
  std::vector<std::string> paths;
  for (const StoreFile& file : list_store_files(directory)) paths.push_back(file.path);
  return paths;
}

}  // namespace sluice::offload
