#include "update_tiles.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::train {

using offload::Tickets;
using offload::Tier;

// A task's ticket ends when its last tile has; the first error wins.
class UpdateTiles::Countdown {
 public:
  explicit Countdown(std::size_t tiles) : left_(tiles) {}
  Ticket ticket() { return source_.ticket(); }
  // `last` runs when every tile has ended well, before the ticket ends.
  void end_one(std::exception_ptr error, const std::function<void()>& last) {
    if (error && !first_error_) first_error_ = error;
    if (--left_ > 0) return;
    try {
      if (!first_error_ && last) last();
    } catch (...) {
      first_error_ = std::current_exception();
    }
    source_.complete(first_error_);
  }

 private:
  // Touched by the updater's thread only, after construction.
  std::size_t left_;
  std::exception_ptr first_error_;
  TicketSource source_;
};

UpdateTiles::UpdateTiles(const UpdaterResources& resources)
    : resources_(resources),
      plan_(*resources.plan),
      tile_(plan::update_tile(plan_.units, plan_.update_tile_count)),
      offsets_(plan::update_tile_offsets(tile_, plan_.compute_dtype)) {
  for (std::size_t u = 0; u < plan_.units.size(); ++u) homes_.push_back(make_home(u));
  if (offsets_.total > 0) {
    ring_.emplace(*resources_.host_pool, offsets_.total,
                  static_cast<std::size_t>(plan_.update_tiles), "tiles of the optimizer step");
    if (resources_.io != nullptr) why_unregistered_ = ring_->register_with(*resources_.io);
    pipeline_.emplace(*ring_);
  }
  worker_.emplace("sluice-update");
}

UpdateTiles::~UpdateTiles() {
  worker_.reset();  // runs what was posted, and so drains the pipeline
  pipeline_.reset();
}

std::size_t UpdateTiles::tiles_of(std::size_t unit) const {
  return static_cast<std::size_t>(ceil_div(shard_count(unit), plan_.update_tile_count));
}

Ticket UpdateTiles::begin(std::size_t unit, TileWork work) {
  auto countdown = std::make_shared<Countdown>(tiles_of(unit));
  Ticket ticket = countdown->ticket();
  {
    MutexLock lock(mutex_);
    waiting_.emplace(unit, Waiting{std::move(work), std::move(countdown)});
  }
  // The worker's own ticket carries nothing: errors go to the countdown.
  detached_.push_back(worker_->begin([this] { run_first(); }));
  while (!detached_.empty() && detached_.front().done()) detached_.pop_front();
  return ticket;
}

void UpdateTiles::run_first() {
  std::size_t unit = 0;
  Waiting first;
  {
    MutexLock lock(mutex_);
    auto node = waiting_.extract(waiting_.begin());
    unit = node.key();
    first = std::move(node.mapped());
  }
  const auto work = std::make_shared<const TileWork>(std::move(first.work));
  const std::uint64_t count = shard_count(unit);
  const std::uint64_t per_tile = plan_.update_tile_count;
  for (std::size_t t = 0; t < tiles_of(unit); ++t) {
    const std::uint64_t begin = t * per_tile;
    run_tile({unit, begin, std::min(per_tile, count - begin)}, work, first.countdown);
  }
  // Tiles of the next unit follow without a gap; only the last one that waits drains.
  const bool last = [&] {
    MutexLock lock(mutex_);
    return waiting_.empty();
  }();
  if (last && pipeline_) pipeline_->drain();
}

UpdateCounters UpdateTiles::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

std::uint64_t UpdateTiles::shard_count(std::size_t unit) const {
  return plan_.layouts[unit].flat_count / static_cast<std::uint64_t>(plan_.world_size);
}

StateHome UpdateTiles::make_home(std::size_t u) {
  StateHome home;
  const zero::UnitLayout& layout = plan_.layouts[u];
  if (layout.frozen) return home;
  home.in_store = plan_.units[u].states == Tier::nvme;
  for (std::size_t s = 0; s < kStates; ++s) {
    const std::string name = models::shard_name(layout, static_cast<int>(s));
    if (home.in_store) {
      home.shards[s] = resources_.store->index_of(name);
      continue;
    }
    const bool device = plan_.units[u].states == Tier::device;
    SLUICE_CHECK(!device || resources_.device->host_addressable(),
                 "optimizer states on this device need an update on the device");
    offload::MemoryPool& pool = device ? resources_.device->memory() : *resources_.host_pool;
    home.memory[s] =
        offload::TieredBytes(pool.tier(), pool.allocate(shard_count(u) * sizeof(float), name));
  }
  return home;
}

// Whether the weights of a unit go through the tile: to a file, or over the link to the device.
bool UpdateTiles::weight_in_tile(std::size_t u) const {
  const plan::UnitPlacement& placement = plan_.units[u];
  return placement.weights == Tier::nvme ||
         (placement.weights == Tier::device && placement.states != Tier::device);
}

std::array<UpdateTiles::Bytes, kStates> UpdateTiles::state_spans(const TileRange& range,
                                                                 Bytes tile) const {
  std::array<Bytes, kStates> spans;
  const StateHome& home = homes_[range.unit];
  const std::size_t size_bytes = range.count * sizeof(float);
  for (std::size_t s = 0; s < kStates; ++s) {
    spans[s] = home.in_store
                   ? tile.subspan(offsets_.states[s], size_bytes)
                   : home.memory[s].memory().subspan(range.begin * sizeof(float), size_bytes);
  }
  return spans;
}

UpdateTiles::Bytes UpdateTiles::compute_span(const TileRange& range, Bytes tile,
                                             const offload::TieredBytes& home, bool in_tile,
                                             std::uint64_t tile_offset) const {
  const std::size_t element = size_of(plan_.compute_dtype);
  if (in_tile) return tile.subspan(tile_offset, range.count * element);
  return home.memory().subspan(range.begin * element, range.count * element);
}

UpdateTiles::Bytes UpdateTiles::gradient_of(const TileRange& range, Bytes tile) const {
  const offload::TieredBytes& home = resources_.units[range.unit]->gradients_home();
  return compute_span(range, tile, home, !home.in_memory(), offsets_.gradient);
}
UpdateTiles::Bytes UpdateTiles::weight_of(const TileRange& range, Bytes tile) const {
  const offload::TieredBytes& home = resources_.units[range.unit]->weights_home();
  return compute_span(range, tile, home, weight_in_tile(range.unit), offsets_.weight);
}

Ticket UpdateTiles::read_file(const offload::TieredBytes& home, const TileRange& range,
                              Bytes data) {
  const offload::FileRange part =
      home.range().part(range.begin * size_of(plan_.compute_dtype), data.size());
  return resources_.io->begin_read(*part.file, part.offset_bytes, data);
}

Tickets UpdateTiles::begin_reads(const TileRange& range, const TileWork& work, Bytes tile) {
  Tickets tickets;
  std::uint64_t bytes = 0;
  const StateHome& home = homes_[range.unit];
  if (work.read_states && home.in_store) {
    const auto spans = state_spans(range, tile);
    for (std::size_t s = 0; s < kStates; ++s) {
      tickets.push_back(
          resources_.store->begin_read(home.shards[s], range.begin * sizeof(float), spans[s]));
      bytes += spans[s].size();
    }
  }
  const offload::TieredBytes& gradients = resources_.units[range.unit]->gradients_home();
  if (work.read_gradient && !gradients.in_memory()) {
    const Bytes data = gradient_of(range, tile);
    tickets.push_back(read_file(gradients, range, data));
    bytes += data.size();
  }
  MutexLock lock(mutex_);
  counters_.nvme_read_bytes += bytes;
  return tickets;
}

Tickets UpdateTiles::begin_writes(const TileRange& range, const TileWork& work, Bytes tile) {
  Tickets tickets;
  std::uint64_t written = 0;
  std::uint64_t copied = 0;
  const StateHome& home = homes_[range.unit];
  if (work.write_states && home.in_store) {
    const auto spans = state_spans(range, tile);
    for (std::size_t s = 0; s < kStates; ++s) {
      tickets.push_back(
          resources_.store->begin_write(home.shards[s], range.begin * sizeof(float), spans[s]));
      written += spans[s].size();
    }
  }
  if (work.write_weight && weight_in_tile(range.unit)) {
    const offload::TieredBytes& weights = resources_.units[range.unit]->weights_home();
    const Bytes data = weight_of(range, tile);
    const std::uint64_t offset_bytes = range.begin * size_of(plan_.compute_dtype);
    if (weights.tier() == Tier::nvme) {
      const offload::FileRange part = weights.range().part(offset_bytes, data.size());
      tickets.push_back(resources_.io->begin_write(*part.file, part.offset_bytes, data));
      written += data.size();
    } else {
      tickets.push_back(resources_.device->begin_copy_in(
          weights.memory().subspan(offset_bytes, data.size()), data));
      copied += data.size();
    }
  }
  MutexLock lock(mutex_);
  counters_.nvme_written_bytes += written;
  counters_.h2d_bytes += copied;
  return tickets;
}

void UpdateTiles::compute(const TileRange& range, const TileWork& work, Bytes tile) {
  const auto begin = std::chrono::steady_clock::now();
  const Bytes gradient = work.read_gradient ? gradient_of(range, tile) : Bytes{};
  const Bytes weight = work.write_weight ? weight_of(range, tile) : Bytes{};
  work.compute(range, state_spans(range, tile), gradient, weight);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MutexLock lock(mutex_);
  counters_.compute_seconds += seconds;
}

void UpdateTiles::run_tile(const TileRange& range, const std::shared_ptr<const TileWork>& work,
                           const std::shared_ptr<Countdown>& countdown) {
  if (pipeline_) {
    pipeline_->push(offload::TileJob{
        [this, range, work](Bytes tile) { return begin_reads(range, *work, tile); },
        [this, range, work](Bytes tile) { compute(range, *work, tile); },
        [this, range, work](Bytes tile) { return begin_writes(range, *work, tile); },
        [work, countdown](std::exception_ptr error) {
          countdown->end_one(std::move(error), work->finish);
        }});
    return;
  }
  std::exception_ptr error;
  try {
    compute(range, *work, {});
  } catch (...) {
    error = std::current_exception();
  }
  countdown->end_one(std::move(error), work->finish);
}

}  // namespace sluice::train
