#pragma once
// SavedState: where a committed state lies and what it is: of one rank in a directory, or of
// several in folders of it (offload::RankManifest). Nothing here reads shards; StateReader does. No
// LibTorch. Thread-safe: values and free functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/models/run_state.hpp"

namespace sluice::models {

// One rank's store.
struct SavedPart {
  std::string folder;
  std::optional<std::uint64_t> digest;  // digest of its manifest; empty: the state of one rank
};

struct SavedState {
  std::string directory;
  RunState state;                // as rank 0 wrote it
  std::string metadata;          // the text that `state` was read from
  std::vector<SavedPart> parts;  // one for each rank of the run that wrote it
};

// Whether `directory` holds a committed state, whatever its number of ranks. Throws StorageError
// when a manifest is damaged, IoError when `directory` is absent or unreadable.
bool holds_state(const std::string& directory);
// The committed state in `directory`. A run that went on with another number of ranks and was
// killed may have left two states, of the same line: the newer one counts. Throws StorageError when
// there is none, and when a manifest that it reads is damaged. Parts of other ranks than 0 are not
// looked at: they may lie on other hosts.
SavedState read_state(const std::string& directory);
// Makes the state of read_state() the only one that `directory` names. The caller holds the
// DirectoryLock. Throws as read_state().
void forget_superseded(const std::string& directory);

}  // namespace sluice::models
