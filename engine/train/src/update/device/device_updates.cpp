#include "update/device/device_updates.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::train {

using offload::DeviceSpan;
using offload::Tier;
using Bytes = std::span<std::byte>;

namespace {

constexpr std::size_t kFlagBytes = sizeof(std::uint32_t);
constexpr std::size_t kFlagStride = 64;  // a cache line each
// Tiles that are copied at a time, in each direction: one, and the next behind it. Weights and
// gradients of the tiles that the cores compute go over that link too, behind what was begun
// before.
constexpr std::ptrdiff_t kMostCopied = 2;
// Whole units at a time: one computes, others wait behind it, so the device never waits for the
// thread.
constexpr std::size_t kWholeUnits = 4;

}  // namespace

void DeviceUpdates::Signal::set() {
  MutexLock lock(mutex);
  is_set = true;
  changed.notify_all();
}

DeviceUpdates::DeviceUpdates(const UpdaterResources& resources, const TilePlacement& placement,
                             Take take)
    : resources_(resources),
      placement_(placement),
      plan_(*resources.plan),
      layout_(plan::device_tile_layout(plan_.units, plan_.state_format,
                                       plan_.config.gradient_dtype(),
                                       plan_.rings.update.tile_elements)),
      take_(std::move(take)),
      signal_(std::make_shared<Signal>()) {
  const auto tiles = static_cast<std::size_t>(plan_.rings.update.device_tiles);
  const std::size_t places = tiles + kWholeUnits;
  SLUICE_CHECK(places * kFlagStride <= offload::kPageBytes, "more tiles than a page has flags");
  flags_ = resources_.host_pool->allocate(offload::kPageBytes, "flags of the GPU's updates");
  device_flags_ =
      resources_.device->memory().allocate(offload::kPageBytes, "flags of the GPU's updates");
  std::memset(flags_.data(), 0, offload::kPageBytes);
  resources_.device->begin_copy_in(device_flags_.device_span(), flags_.bytes(), {}).finish();
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    slots_.push_back(
        resources_.device->memory().allocate(layout_.total, "update tiles of the GPU"));
    free_tiles_.push_back(tile);
  }
  for (std::size_t place = tiles; place < places; ++place) free_places_.push_back(place);
  thread_ = start_thread("sluice-gpu-step", [this] { run(); });
}

DeviceUpdates::~DeviceUpdates() {
  stop();
}

void DeviceUpdates::stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(signal_->mutex);
    signal_->stopping = true;
    signal_->changed.notify_all();
  }
  thread_.join();
}

void DeviceUpdates::wake() {
  signal_->set();
}

void DeviceUpdates::run() {
  while (wait_for_signal()) {
    advance_all();
    while (std::optional<Job> job = take_(what_is_free())) begin(std::move(*job));
  }
}

bool DeviceUpdates::wait_for_signal() {
  Signal& signal = *signal_;
  MutexLock lock(signal.mutex);
  while (!signal.is_set && !(signal.stopping && tiles_.empty())) signal.changed.wait(signal.mutex);
  return std::exchange(signal.is_set, false);
}

std::ptrdiff_t DeviceUpdates::tiles_in(Stage stage) const {
  return std::ranges::count_if(
      tiles_, [&](const Tile& tile) { return tile.stage == stage && has_tile(tile.slot); });
}

DeviceUpdates::Free DeviceUpdates::what_is_free() const {
  return {!free_tiles_.empty() && tiles_in(Stage::reading) < kMostCopied, !free_places_.empty()};
}

bool DeviceUpdates::can_do(std::size_t unit, const TileWork& work) const {
  return !slots_.empty() && work.compute_on_device && plan::device_can_update(plan_.units[unit]);
}

bool DeviceUpdates::does_alone(std::size_t unit, const TileWork& work) const {
  return work.compute_on_device && plan::device_has_all_of(plan_.units[unit]);
}

Bytes DeviceUpdates::flag_of(std::size_t slot) const {
  return flags_.bytes().subspan(slot * kFlagStride, kFlagBytes);
}

// Whether host memory is the part's home. The half of a split master that the weights are is up to
// date on the device, where it may have its only home.
bool DeviceUpdates::is_on_host(std::size_t unit, std::size_t part) const {
  return placement_.home(unit)[part].place == plan::PartPlace::memory;
}

Bytes DeviceUpdates::host_part(const TileRange& range, std::size_t part) const {
  return host_bytes_in(*resources_.device, placement_.home(range.unit)[part].memory, range,
                       plan_.state_format.part(part).element_bytes);
}

DeviceSpan DeviceUpdates::device_flag_of(std::size_t slot) const {
  return device_flags_.device_span().subspan(slot * kFlagStride, kFlagBytes);
}

// Weights, and what has its home on the device, are updated there; the rest in the tile.
DeviceTile DeviceUpdates::memory_of(std::size_t slot, const TileRange& range) const {
  const zero::ShardedUnit& unit = *resources_.units[range.unit];
  const models::StateFormat& format = plan_.state_format;
  const StateHome& home = placement_.home(range.unit);
  const DeviceSpan weights =
      device_span_in(unit.weights_home(), range, size_of(plan_.compute_dtype));
  DeviceTile memory = has_tile(slot) ? memory_in_tile(slot, range) : DeviceTile();
  for (std::size_t i = 0; i < format.part_count(); ++i) {
    if (format.is_split() && i == 0) {
      memory.states[i] = weights;
    } else if (home[i].memory.tier() == Tier::device) {
      memory.states[i] = device_span_in(home[i].memory, range, format.part(i).element_bytes);
    }
  }
  if (!format.is_split()) memory.weight = weights;
  if (unit.gradients_home().tier() == Tier::device) {
    memory.gradient =
        device_span_in(unit.gradients_home(), range, size_of(plan_.config.gradient_dtype()));
  }
  memory.non_finite = device_flag_of(slot);
  return memory;
}

DeviceTile DeviceUpdates::memory_in_tile(std::size_t slot, const TileRange& range) const {
  const DeviceSpan tile = slots_[slot].device_span();
  const models::StateFormat& format = plan_.state_format;
  DeviceTile memory;
  for (std::size_t i = format.is_split() ? 1 : 0; i < format.part_count(); ++i)
    memory.states[i] = tile.subspan(layout_.states[i], range.count * format.part(i).element_bytes);
  memory.gradient =
      tile.subspan(layout_.gradient, range.count * size_of(plan_.config.gradient_dtype()));
  return memory;
}

void DeviceUpdates::begin(Job job) {
  std::vector<std::size_t>& free = job.whole_unit ? free_places_ : free_tiles_;
  Tile& tile = tiles_.emplace_back(Tile{.slot = free.back(),
                                        .stage = Stage::reading,
                                        .range = job.range,
                                        .work = {job.countdown, &job.countdown->work()},
                                        .end = TileEnd(job.countdown),
                                        .memory = {},
                                        .pending = {},
                                        .error = job.countdown->start()});
  free.pop_back();
  if (!tile.error) {
    tile.error = error_of([&] {
      tile.memory = memory_of(tile.slot, tile.range);
      begin_reads(tile);
    });
  }
  wake_at_the_end_of(tile);
}

void DeviceUpdates::wake_at_the_end_of(const Tile& tile) const {
  if (tile.pending.empty()) return signal_->set();
  for (const Ticket& ticket : tile.pending)
    ticket.when_ended([signal = signal_] { signal->set(); });
}

void DeviceUpdates::begin_reads(Tile& tile) {
  std::uint64_t moved_bytes = 0;
  const auto copy_in = [&](DeviceSpan to, Bytes from) {
    tile.pending.push_back(resources_.device->begin_copy_in(to, from, {}));
    moved_bytes += from.size();
  };
  const models::StateFormat& format = plan_.state_format;
  for (std::size_t i = format.is_split() ? 1 : 0; i < format.part_count(); ++i) {
    if (is_on_host(tile.range.unit, i)) copy_in(tile.memory.states[i], host_part(tile.range, i));
  }
  if (!plan::tile_holds_gradient(plan_.units[tile.range.unit]))
    copy_in(tile.memory.gradient, placement_.gradient(tile.range, {}));
  MutexLock lock(mutex_);
  counters_.h2d_bytes += moved_bytes;
}

void DeviceUpdates::begin_compute(Tile& tile) {
  offload::DeviceWork work;
  work.name = tile.work->what;
  work.issue = [work = tile.work, range = tile.range, memory = tile.memory](void* stream) {
    work->compute_on_device(range, memory, stream);
  };
  for (const DeviceSpan& part : tile.memory.states) {
    if (!part.empty()) work.uses.push_back(part);
  }
  for (const DeviceSpan& part :
       {tile.memory.gradient, tile.memory.weight, tile.memory.non_finite}) {
    if (!part.empty()) work.uses.push_back(part);
  }
  tile.pending.push_back(resources_.device->begin_work(std::move(work), tile.work->after));
}

void DeviceUpdates::begin_writes(Tile& tile) {
  std::uint64_t moved_bytes = 0;
  const auto copy_out = [&](Bytes to, DeviceSpan from) {
    tile.pending.push_back(resources_.device->begin_copy_out(to, from, {}));
    moved_bytes += to.size();
  };
  for (std::size_t i = 0; i < plan_.state_format.part_count(); ++i) {
    if (is_on_host(tile.range.unit, i)) copy_out(host_part(tile.range, i), tile.memory.states[i]);
  }
  tile.pending.push_back(
      resources_.device->begin_copy_out(flag_of(tile.slot), tile.memory.non_finite, {}));
  MutexLock lock(mutex_);
  counters_.d2h_bytes += moved_bytes;
  counters_.device_elements += tile.range.count;
}

bool DeviceUpdates::advance(Tile& tile) {
  const std::exception_ptr failed = error_of([&] { finish_all(tile.pending); });
  if (!tile.error) tile.error = failed;
  if (tile.error) return true;
  tile.error = error_of([&] {
    switch (tile.stage) {
      case Stage::reading:
        begin_compute(tile);
        tile.stage = Stage::computing;
        break;
      case Stage::computing:
        tile.end.weights_current();
        begin_writes(tile);
        tile.stage = Stage::writing;
        break;
      case Stage::writing:
        check(tile);
        break;
    }
  });
  return tile.pending.empty();
}

void DeviceUpdates::check(const Tile& tile) {
  std::uint32_t non_finite = 0;
  std::memcpy(&non_finite, flag_of(tile.slot).data(), kFlagBytes);
  if (non_finite == 0) return;
  std::memset(flag_of(tile.slot).data(), 0, kFlagBytes);
  resources_.device->begin_copy_in(tile.memory.non_finite, flag_of(tile.slot), {}).finish();
  tile.work->found_non_finite(tile.range, tile.memory);
}

void DeviceUpdates::advance_all() {
  for (auto at = tiles_.begin(); at != tiles_.end();) {
    const bool waits_for_link = has_tile(at->slot) && at->stage == Stage::computing &&
                                tiles_in(Stage::writing) >= kMostCopied;
    if (waits_for_link || !all_done(at->pending)) {
      ++at;
      continue;
    }
    if (!advance(*at)) {
      wake_at_the_end_of(*at++);
      continue;
    }
    (has_tile(at->slot) ? free_tiles_ : free_places_).push_back(at->slot);
    at->end.end(at->error);
    at = tiles_.erase(at);
    signal_->set();  // a tile before it may wait for the link
  }
}

UpdateCounters DeviceUpdates::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace sluice::train
