#pragma once
// StateReader: reads a committed state of any number of ranks by elements of whole units. The
// elements of a unit's flat buffer lie at the same place whatever the number of ranks
// (zero::UnitLayout); only the padding at the end differs. So each new rank reads its range from
// the old ranks' shards that overlap it. Every chunk that is read is compared with its checksum. No
// LibTorch.
//
// Thread-safe.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/models/saved_state.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::models {

class StateReader {
 public:
  // Opens all parts, which it locks shared, except those that `held` holds, which may be null.
  // `io` and `held` outlive it. Throws StorageError when a part is not that of saved.state, when
  // the state was replaced since `saved` was read, and while a run has a directory; IoError.
  StateReader(const SavedState& saved, nvme::IoEngine& io,
              const offload::HeldDirectories* held = nullptr);
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;

  const RunState& state() const { return state_; }
  // All directories that hold bytes of it.
  std::vector<std::string> directories() const;

  // Reads elements of part `part` (StateFormat::part) of the unit named `unit`, from element
  // `begin_count` of its flat buffer on. `bytes` holds whole elements. Bytes of elements behind the
  // saved buffer, which are padding, are left as they are. Blocks. Throws StorageError when a
  // checksum differs, InvalidArgument for a unit that is not in the state, IoError.
  void read(const std::string& unit, std::size_t part, std::uint64_t begin_count,
            std::span<std::byte> bytes) const;
  // Master values of a unit as fp32, from element `begin_count` on. Padding that is not saved is 0.
  // `halves`: scratch of values.size_bytes() for a split master, else unused. Blocks. Throws as
  // read().
  void read_master(const std::string& unit, std::uint64_t begin_count, std::span<float> values,
                   std::span<std::byte> halves) const;

 private:
  void read_from(offload::SwapStore& store, std::size_t shard, std::uint64_t offset_bytes,
                 std::span<std::byte> bytes) const;

  RunState state_;
  std::map<std::string, std::uint64_t> shard_counts_;        // elements that each rank has, by unit
  std::vector<std::unique_ptr<offload::SwapStore>> stores_;  // by rank
};

}  // namespace sluice::models
