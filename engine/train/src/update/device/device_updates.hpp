#pragma once
// DeviceUpdates: the part of the optimizer step that the device computes, on a thread of its own. A
// unit that the device has all of is updated where it is, as one job. Other units are updated by
// tiles: states and gradient are copied from their home in host memory into a tile of the device's
// memory; the device computes; the states go back. Weights, and a gradient at home on the device,
// stay where they are. TileScheduler decides which jobs these are. Not installed.

#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "update/tile_placement.hpp"
#include "update/tile_range.hpp"
#include "update/tile_work.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

// Thread-safe.
class DeviceUpdates {
 public:
  struct Job {
    TileRange range;
    std::shared_ptr<UnitCountdown> countdown;  // shared by the unit's tiles
    bool whole_unit = false;
  };
  // Whether the device has memory for a next job.
  struct Free {
    bool tile = false;
    bool place_for_unit = false;
  };
  // The next job for the device, if there is one. Called on the thread of the updates.
  using Take = std::function<std::optional<Job>(const Free& free)>;

  // Allocates the tiles that the plan has. All arguments outlive it. Throws OutOfMemory.
  DeviceUpdates(const UpdaterResources& resources, const TilePlacement& placement, Take take);
  ~DeviceUpdates();  // stops
  DeviceUpdates(const DeviceUpdates&) = delete;
  DeviceUpdates& operator=(const DeviceUpdates&) = delete;

  // Whether the device can do this work on tiles of the unit.
  bool can_do(std::size_t unit, const TileWork& work) const;
  // Whether the device does this work on the whole unit, and the CPU none of it.
  bool does_alone(std::size_t unit, const TileWork& work) const;
  // `take` may have a job now.
  void wake();
  // Ends all jobs that `take` has, and then the thread.
  void stop();

  // Bytes moved and elements updated so far.
  UpdateCounters counters() const;

 private:
  enum class Stage { reading, computing, writing };
  struct Tile {
    std::size_t slot = 0;  // of its flag, and of its tile where has_tile()
    Stage stage = Stage::reading;
    TileRange range;
    std::shared_ptr<const TileWork> work;  // shared with the tiles of the unit
    TileEnd end;
    DeviceTile memory;
    offload::Tickets pending;
    std::exception_ptr error;
  };
  // Wakes the thread. Shared with the transfers that set it, whose last call may come late.
  struct Signal {
    Mutex mutex;
    CondVar changed;
    bool is_set SLUICE_GUARDED_BY(mutex) = false;
    bool stopping SLUICE_GUARDED_BY(mutex) = false;
    void set();
  };

  void run();
  // False: nothing is left to do, and the updates are to stop.
  bool wait_for_signal();
  // Does what can be done without waiting.
  void advance_all();
  // Whether the slot has a tile. A whole unit needs none.
  bool has_tile(std::size_t slot) const { return slot < slots_.size(); }
  std::ptrdiff_t tiles_in(Stage stage) const;
  Free what_is_free() const;
  void begin(Job job);
  void wake_at_the_end_of(const Tile& tile) const;
  DeviceTile memory_of(std::size_t slot, const TileRange& range) const;
  std::span<std::byte> flag_of(std::size_t slot) const;
  offload::DeviceSpan device_flag_of(std::size_t slot) const;
  DeviceTile memory_in_tile(std::size_t slot, const TileRange& range) const;
  bool is_on_host(std::size_t unit, std::size_t part) const;
  std::span<std::byte> host_part(const TileRange& range, std::size_t part) const;
  void begin_reads(Tile& tile);
  void begin_compute(Tile& tile);
  void begin_writes(Tile& tile);
  // Goes on with a tile whose stage has ended. True: the tile has ended.
  bool advance(Tile& tile);
  void check(const Tile& tile);

  const UpdaterResources& resources_;
  const TilePlacement& placement_;
  const plan::Plan& plan_;
  const plan::DeviceTileLayout layout_;
  std::vector<offload::Buffer> slots_;
  // A cache line for each slot: whether its last result is non-finite.
  offload::Buffer flags_, device_flags_;
  const Take take_;
  // Confined to the thread, as tiles_.
  std::vector<std::size_t> free_tiles_, free_places_;
  std::list<Tile> tiles_;  // in flight, in the order in which they were begun
  const std::shared_ptr<Signal> signal_;
  mutable Mutex mutex_;
  UpdateCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it starts when all it uses is there
};

}  // namespace sluice::train
