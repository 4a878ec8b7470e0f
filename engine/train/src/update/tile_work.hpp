#pragma once
// TileWork: one piece of work on every tile of a unit's optimizer states, and the loops over pieces
// that compute it. UnitCountdown: when the work has reached all tiles, and who is told of an error.
// Not installed.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/base/piece_queue.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/zero/unit_layout.hpp"
#include "update/optimizer_tile.hpp"
#include "update/tile_placement.hpp"
#include "update/tile_range.hpp"

namespace sluice::train {

// Where the device finds what it updates: in the tile's memory there, or at home on the device.
struct DeviceTile {
  std::array<offload::DeviceSpan, models::kMostStateParts> states;
  offload::DeviceSpan gradient;
  offload::DeviceSpan weight;      // empty: it is half of a split master
  offload::DeviceSpan non_finite;  // a std::uint32_t: becomes 1 after a non-finite value
};

// The work on each tile of a unit: read, compute, write. Parts without a home that the CPU reads
// and writes pass through the tile's memory. Thread-compatible: callers synchronise.
struct TileWork {
  using Bytes = std::span<std::byte>;
  using States = StateSpans;

  // Parts of the states that are read from the store or written to it. `cached`: host memory holds
  // them as well. `uncached`: it does not; states on a device that is not host addressable count as
  // uncached too, and move between device and tile. So does the half of a split master that only
  // the weights on such a device are.
  enum class Parts { none, uncached, cached, all };

  const char* what = "";  // name in the trace
  Parts read_states = Parts::none;
  Parts write_states = Parts::none;
  // The work is on the tiles that have some of these elements of the shard, and of a unit at home
  // on these alone. Only for work that writes no part to the store, where a shard is written whole.
  // Empty: all; else at least one element.
  std::optional<zero::ShardRange> elements;
  // Reads are for a checkpoint, and count in no step.
  bool of_checkpoint = false;
  bool read_gradient = false;
  bool write_weight = false;
  // Weights in device memory are written after this point of the device's compute work.
  offload::ComputePoint after;
  // Called when the work before it on the unit has ended, and before its own first tile. The work
  // ends with the error that it returns, if any. May be empty; must not throw.
  std::function<std::exception_ptr()> start;
  // Only the weights go to their home, from the unit's states, all at once and without a tile. For
  // states in memory.
  bool sends_unit = false;
  // Runs for pieces of a tile, or of a whole unit, on several threads at once, with the states,
  // gradient and weight of the piece. The weight is empty if it is half of a split master. The
  // function may be empty.
  std::function<void(const TileRange&, const States& states, Bytes gradient, Bytes weight)> compute;
  // `compute` takes whole tiles, because it moves bytes itself or compares checksums of chunks.
  bool whole_tiles = false;
  // Computes on the device, in place of `compute`: issues to `stream`, as DeviceWork::issue. Empty:
  // only the CPU computes the work.
  std::function<void(const TileRange&, const DeviceTile&, void* stream)> compute_on_device;
  // Called when the device gave a non-finite value and the states are back at home. Throws, if not
  // only padding is non-finite.
  std::function<void(const TileRange&, const DeviceTile&)> found_non_finite;
  // Called when the weights of all tiles are at their home, possibly before the states are;
  // receives the first error so far, or null.
  std::function<void(std::exception_ptr)> weights_current;
  // Called after all tiles have ended without an error.
  std::function<void()> finish;
  // Called last, with the first error, or null.
  std::function<void(const std::exception_ptr&)> ended;
  bool is_update() const { return read_gradient; }
};

// The checksums of the chunks of a tile, by part of the states; empty for a part that is not
// written to the store.
using StateChecksums = std::array<std::vector<std::uint64_t>, models::kMostStateParts>;

// Whether `parts` includes those that move between a device and the tile.
bool includes_uncached(TileWork::Parts parts);
// Whether `parts` includes the part with that home; false for a part that is not in the store.
bool includes(TileWork::Parts parts, const PartHome& home);

// A tile that is computed, or a whole unit that is computed at its homes.
struct TileTask {
  TileRange range;
  std::shared_ptr<const TileWork> work;  // shared with the tiles of the unit
  std::span<std::byte> tile;             // the memory of the tile; empty for a unit at its homes
  std::string unit_name;                 // for the trace
};
// Adds the loops that compute a tile: pieces of `work.compute`, then the checksums of all parts
// that go to the store. `checksums` outlives them. `ended` is called once, with the error of the
// lowest piece that failed or null, on the thread that ran the last piece; without pieces, before
// the call returns.
void begin_pieces(PieceQueue& queue, const TilePlacement& placement, TileTask task,
                  StateChecksums& checksums, std::function<void(std::exception_ptr)> ended);

// Counts a unit's tiles down. Thread-safe after ticket(): tiles of the CPU and of the device end on
// different threads. The functions of the work are called by the thread whose call is the last.
class UnitCountdown {
 public:
  UnitCountdown(std::size_t tiles, TileWork work);
  // Ends with the last tile. The first error is told once: to weights_current() of the work if it
  // came before all weights were current, else by this ticket.
  Ticket ticket() { return source_.ticket(); }
  const TileWork& work() const { return work_; }
  // Called before each tile begins: starts the work at the first call. Returns the error with which
  // the tile ends.
  std::exception_ptr start();
  // Each is called once for each tile, in this order.
  void weights_of_one(const std::exception_ptr& error);
  void end_one(const std::exception_ptr& error);

 private:
  void note(const std::exception_ptr& error) SLUICE_REQUIRES(mutex_);

  const TileWork work_;
  mutable Mutex mutex_;
  bool started_ SLUICE_GUARDED_BY(mutex_) = false;
  std::exception_ptr start_error_ SLUICE_GUARDED_BY(mutex_);
  std::size_t without_weights_ SLUICE_GUARDED_BY(mutex_);
  std::size_t left_ SLUICE_GUARDED_BY(mutex_);
  std::exception_ptr first_error_ SLUICE_GUARDED_BY(mutex_);
  bool told_ SLUICE_GUARDED_BY(mutex_) = false;
  TicketSource source_;  // of the thread that ends the last tile
};

// The progress of one tile; shares its unit's countdown with the other tiles. Confined to the
// thread that ends the tile.
class TileEnd {
 public:
  explicit TileEnd(std::shared_ptr<UnitCountdown> countdown) : countdown_(std::move(countdown)) {}
  // The tile's weights are at their home. Called before end(), or not at all.
  void weights_current();
  // The tile has ended; its weights are current too unless `error` says otherwise.
  void end(const std::exception_ptr& error);

 private:
  const std::shared_ptr<UnitCountdown> countdown_;
  bool current_ = false;
};

}  // namespace sluice::train
