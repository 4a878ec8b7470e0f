#include "update/update_tiles.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "update/far_states.hpp"

namespace sluice::train {

using offload::Tickets;
using offload::Tier;

UpdateTiles::UpdateTiles(const UpdaterResources& resources)
    : resources_(resources),
      trace_row_(resources.trace, "update"),
      plan_(*resources.plan),
      format_(plan_.state_format),
      offsets_(plan::tile_layout(plan_.units, format_, plan_.compute_dtype,
                                 plan_.rings.update.tile_elements)) {
  std::uint64_t elements = 0;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    homes_.push_back(make_home(u));
    first_elements_.push_back(elements);
    elements += plan_.layouts[u].flat_count;
  }
  if (offsets_.total > 0) {
    ring_.emplace(*resources_.host_pool, offsets_.total,
                  static_cast<std::size_t>(plan_.rings.update.tiles),
                  "tiles of the optimizer step");
    if (resources_.io != nullptr) why_unregistered_ = ring_->register_with(*resources_.io);
    pipeline_.emplace(*ring_);
  }
  if (plan_.rings.update.read_ahead_tiles > 0) {
    ahead_ring_.emplace(*resources_.host_pool, offsets_.total,
                        static_cast<std::size_t>(plan_.rings.update.read_ahead_tiles),
                        "states read ahead of their gradients");
    if (resources_.io != nullptr) {
      const std::string why = ahead_ring_->register_with(*resources_.io);
      if (why_unregistered_.empty()) why_unregistered_ = why;
    }
    std::vector<std::uint64_t> counts(homes_.size(), 0);
    for (std::size_t u = 0; u < counts.size(); ++u) {
      if (plan::reads_states_from_nvme(plan_.units[u], format_)) counts[u] = shard_count(u);
    }
    ahead_.emplace(*ahead_ring_, std::move(counts), plan_.rings.update.tile_elements,
                   [this](const TileRange& range, Bytes tile) {
                     return begin_state_reads(range, TileWork::Parts::in_store_only, tile, {});
                   });
  }
  worker_.emplace("sluice-update");
}

UpdateTiles::~UpdateTiles() {
  worker_.reset();  // runs what was posted, and so drains the pipeline
  ahead_.reset();
  pipeline_.reset();
}

std::size_t UpdateTiles::tiles_of(std::size_t unit) const {
  return static_cast<std::size_t>(ceil_div(shard_count(unit), plan_.rings.update.tile_elements));
}

TileRange UpdateTiles::tile_range(std::size_t unit, std::size_t tile) const {
  return tile_at(unit, tile * plan_.rings.update.tile_elements, shard_count(unit),
                 plan_.rings.update.tile_elements);
}

// The work's own ticket carries nothing: errors go to the countdown.
void UpdateTiles::post(std::function<void()> task) {
  detached_.push_back(worker_->begin(std::move(task)));
  while (!detached_.empty() && detached_.front().done()) detached_.pop_front();
}

Ticket UpdateTiles::begin(std::size_t unit, TileWork work) {
  if (ahead_) {
    ahead_->begin_work(unit, work.is_update());
    work.ended = [this, unit] { ahead_->end_work(unit); };
  }
  auto countdown = std::make_shared<UnitCountdown>(tiles_of(unit), std::move(work));
  Ticket ticket = countdown->ticket();
  {
    MutexLock lock(mutex_);
    waiting_.emplace(unit, Waiting{std::move(countdown)});
  }
  post([this] { run_waiting(); });
  return ticket;
}

void UpdateTiles::expect_updates() {
  if (!ahead_) return;
  ahead_->expect_updates();
  post([this] { run_waiting(); });
}

std::optional<UpdateTiles::NextTile> UpdateTiles::take_tile() {
  MutexLock lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  const auto first = waiting_.begin();
  const std::size_t unit = first->first;
  Waiting& waiting = first->second;
  NextTile next{tile_range(unit, waiting.next_tile), waiting.countdown};
  if (++waiting.next_tile == tiles_of(unit)) waiting_.erase(first);
  return next;
}

// A unit that arrives is begun after the tile at hand, not after its unit: the first units' weights
// are waited for first, and their gradients come last. What nobody waits for comes after all that.
void UpdateTiles::run_waiting() {
  while (true) {
    if (const std::optional<NextTile> next = take_tile()) {
      run_tile(next->range, next->countdown);
    } else if (!unwritten_.empty()) {
      write_next();
    } else {
      if (ahead_) ahead_->start();
      if (!pipeline_ || !pipeline_->step()) return;
    }
  }
}

UpdateCounters UpdateTiles::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

std::uint64_t UpdateTiles::shard_count(std::size_t unit) const {
  return plan_.layouts[unit].flat_count / static_cast<std::uint64_t>(plan_.config.world_size);
}

StateHome UpdateTiles::make_home(std::size_t u) {
  StateHome home;
  if (plan_.layouts[u].frozen) return home;
  const plan::UnitPlacement& unit = plan_.units[u];
  const bool on_device = unit.states == Tier::device;
  offload::MemoryPool& pool = on_device ? resources_.device->memory() : *resources_.host_pool;
  for (std::size_t i = 0; i < format_.part_count(); ++i) {
    const models::StatePart part = format_.part(i);
    const std::string name = models::shard_name(plan_.layouts[u], part);
    PartHome& one = home.emplace_back();
    one.place = plan::place_of_part(unit, format_, i);
    if (unit.states == Tier::nvme) one.shard = resources_.store->index_of(name);
    const bool is_weight = format_.is_split() && i == 0;
    if (one.place == plan::PartPlace::memory || (plan::states_copied_to_tile(unit) && !is_weight)) {
      one.memory = offload::TieredBytes(pool.tier(),
                                        pool.allocate(shard_count(u) * part.element_bytes, name));
    }
  }
  return home;
}

UpdateTiles::States UpdateTiles::state_spans(const TileRange& range, Bytes tile) const {
  States spans;
  const StateHome& home = homes_[range.unit];
  for (std::size_t i = 0; i < home.size(); ++i) {
    const std::size_t element = format_.part(i).element_bytes;
    switch (home[i].place) {
      case plan::PartPlace::weights:
        spans[i] = bytes_in(resources_.units[range.unit]->weights_home(), range, element);
        break;
      case plan::PartPlace::memory:
        spans[i] = bytes_in(home[i].memory, range, element);
        break;
      case plan::PartPlace::tile:
        spans[i] = tile.subspan(offsets_.states[i], range.count * element);
        break;
    }
  }
  return spans;
}

UpdateTiles::Bytes UpdateTiles::compute_span(const TileRange& range, Bytes tile,
                                             const offload::TieredBytes& home, bool in_tile,
                                             std::uint64_t tile_offset) const {
  const std::size_t element = size_of(plan_.compute_dtype);
  if (in_tile) return tile.subspan(tile_offset, range.count * element);
  return bytes_in(home, range, element);
}

UpdateTiles::Bytes UpdateTiles::gradient_of(const TileRange& range, Bytes tile) const {
  const offload::TieredBytes& home = resources_.units[range.unit]->gradients_home();
  return compute_span(range, tile, home, plan::tile_holds_gradient(plan_.units[range.unit]),
                      offsets_.gradient);
}
UpdateTiles::Bytes UpdateTiles::weight_of(const TileRange& range, Bytes tile) const {
  if (format_.is_split()) return {};
  const offload::TieredBytes& home = resources_.units[range.unit]->weights_home();
  return compute_span(range, tile, home, plan::tile_holds_weights(plan_.units[range.unit], format_),
                      offsets_.weight);
}

Ticket UpdateTiles::read_file(const offload::TieredBytes& home, const TileRange& range,
                              Bytes data) {
  const offload::FileRange part =
      home.range().part(range.begin * size_of(plan_.compute_dtype), data.size());
  return resources_.io->begin_read(*part.file, part.offset_bytes, data);
}

Tickets UpdateTiles::begin_state_reads(const TileRange& range, TileWork::Parts parts, Bytes tile,
                                       const offload::ComputePoint& after) {
  Tickets tickets;
  const StateHome& home = homes_[range.unit];
  const States spans = state_spans(range, tile);
  for (std::size_t i = 0; i < home.size(); ++i) {
    if (!includes(parts, home[i])) continue;
    const std::uint64_t offset_bytes = range.begin * format_.part(i).element_bytes;
    tickets.push_back(resources_.store->begin_read(*home[i].shard, offset_bytes, spans[i]));
  }
  if (in_tile_only(parts) && plan::states_copied_to_tile(plan_.units[range.unit])) {
    UpdateCounters moved;
    moved.d2h_bytes =
        begin_far_reads(*resources_.device, format_, home,
                        resources_.units[range.unit]->weights_home(), range, spans, after, tickets);
    count(moved);
  }
  return tickets;
}

// When they are used: what was read ahead belongs to that step.
void UpdateTiles::count_state_reads(const TileRange& range, TileWork::Parts parts) {
  UpdateCounters moved;
  const StateHome& home = homes_[range.unit];
  for (std::size_t i = 0; i < home.size(); ++i) {
    const std::uint64_t bytes = range.count * format_.part(i).element_bytes;
    if (includes(parts, home[i])) {
      moved.nvme_read_bytes += bytes;
    } else if (parts != TileWork::Parts::none && home[i].shard &&
               home[i].place == plan::PartPlace::memory) {
      moved.nvme_cached_bytes += bytes;
    }
  }
  count(moved);
}

void UpdateTiles::add_gradient_read(const TileRange& range, Bytes tile,
                                    const offload::ComputePoint& after, Tickets& tickets) {
  if (!plan::tile_holds_gradient(plan_.units[range.unit])) return;
  const offload::TieredBytes& home = resources_.units[range.unit]->gradients_home();
  const Bytes data = gradient_of(range, tile);
  UpdateCounters moved;
  if (home.in_memory()) {
    tickets.push_back(resources_.device->begin_copy_out(
        data, bytes_in(home, range, size_of(plan_.compute_dtype)), after));
    moved.d2h_bytes = data.size();
  } else {
    tickets.push_back(read_file(home, range, data));
    moved.nvme_read_bytes = data.size();
  }
  count(moved);
}

Tickets UpdateTiles::begin_writes(const TileRange& range, const TileWork& work, Bytes tile) {
  Tickets tickets;
  UpdateCounters moved;
  const StateHome& home = homes_[range.unit];
  const States spans = state_spans(range, tile);
  for (std::size_t i = 0; i < home.size(); ++i) {
    if (!includes(work.write_states, home[i])) continue;
    const std::uint64_t offset_bytes = range.begin * format_.part(i).element_bytes;
    tickets.push_back(resources_.store->begin_write(*home[i].shard, offset_bytes, spans[i]));
    moved.nvme_written_bytes += spans[i].size();
  }
  if (in_tile_only(work.write_states) && plan::states_copied_to_tile(plan_.units[range.unit])) {
    moved.h2d_bytes +=
        begin_far_writes(*resources_.device, format_, home, range, spans, work.after, tickets);
  }
  if (work.write_weight) {
    send_weight(range, format_.is_split() ? spans[0] : weight_of(range, tile), work.after, tickets,
                moved);
  }
  count(moved);
  return tickets;
}

void UpdateTiles::send_weight(const TileRange& range, Bytes data,
                              const offload::ComputePoint& after, Tickets& tickets,
                              UpdateCounters& moved) const {
  if (!plan::update_sends_weights(plan_.units[range.unit])) return;
  const offload::TieredBytes& weights = resources_.units[range.unit]->weights_home();
  const std::uint64_t offset_bytes = range.begin * size_of(plan_.compute_dtype);
  if (weights.tier() == Tier::nvme) {
    const offload::FileRange part = weights.range().part(offset_bytes, data.size());
    tickets.push_back(resources_.io->begin_write(*part.file, part.offset_bytes, data));
    moved.nvme_written_bytes += data.size();
  } else {
    tickets.push_back(resources_.device->begin_copy_in(
        weights.memory().subspan(offset_bytes, data.size()), data, after));
    moved.h2d_bytes += data.size();
  }
}

void UpdateTiles::count(const UpdateCounters& more) {
  MutexLock lock(mutex_);
  counters_.nvme_read_bytes += more.nvme_read_bytes;
  counters_.nvme_cached_bytes += more.nvme_cached_bytes;
  counters_.nvme_written_bytes += more.nvme_written_bytes;
  counters_.h2d_bytes += more.h2d_bytes;
  counters_.d2h_bytes += more.d2h_bytes;
  counters_.compute_seconds += more.compute_seconds;
}

void UpdateTiles::compute(const TileRange& range, const TileWork& work, Bytes tile) {
  if (!work.compute) return;
  const auto begin = std::chrono::steady_clock::now();
  const Bytes gradient = work.read_gradient ? gradient_of(range, tile) : Bytes{};
  const Bytes weight = work.write_weight ? weight_of(range, tile) : Bytes{};
  work.compute(range, state_spans(range, tile), gradient, weight);
  const auto end = std::chrono::steady_clock::now();
  trace_row_.add(
      work.what, plan_.layouts[range.unit].name, begin, end,
      {{"tile", static_cast<std::int64_t>(range.begin / plan_.rings.update.tile_elements)},
       {"elements", static_cast<std::int64_t>(range.count)}});
  UpdateCounters spent;
  spent.compute_seconds = std::chrono::duration<double>(end - begin).count();
  count(spent);
}

void UpdateTiles::run_tile(const TileRange& range,
                           const std::shared_ptr<UnitCountdown>& countdown) {
  const TileWork& work = countdown->work();  // lives as long as the tile's end
  const auto end = std::make_shared<TileEnd>(countdown);
  if (!pipeline_) {
    end->end(error_of([&] { compute(range, work, {}); }));
    return;
  }
  if (ahead_ && work.is_update()) {
    if (std::optional<ReadAhead::Tile> tile = ahead_->take(range)) {
      run_tile_read_ahead(range, work, end, std::move(*tile));
      return;
    }
  } else if (ahead_ && work.write_states == TileWork::Parts::all) {
    ahead_->forget(range.unit);
  }
  offload::TileJob job = writing_job(range, work, end);
  job.begin_read = [this, range, &work](Bytes tile) {
    Tickets tickets = begin_state_reads(range, work.read_states, tile, work.after);
    count_state_reads(range, work.read_states);
    if (work.read_gradient) add_gradient_read(range, tile, work.after, tickets);
    return tickets;
  };
  job.compute = [this, range, &work](Bytes tile) { compute(range, work, tile); };
  pipeline_->push(std::move(job));
}

// What remains of a tile after its computation.
offload::TileJob UpdateTiles::writing_job(const TileRange& range, const TileWork& work,
                                          const std::shared_ptr<TileEnd>& end) {
  const bool leaves = plan::update_sends_weights(plan_.units[range.unit]);
  offload::TileJob job;
  job.begin_write = [this, range, &work, end, leaves](Bytes tile) {
    if (!leaves) end->weights_current();
    return begin_writes(range, work, tile);
  };
  job.done = [end](const std::exception_ptr& error) { end->end(error); };
  return job;
}

void UpdateTiles::run_tile_read_ahead(const TileRange& range, const TileWork& work,
                                      const std::shared_ptr<TileEnd>& end, ReadAhead::Tile tile) {
  const std::exception_ptr error = error_of([&] {
    count_state_reads(range, work.read_states);
    add_gradient_read(range, tile.lease.bytes(), work.after, tile.reads);
    finish_all(tile.reads);
    compute(range, work, tile.lease.bytes());
  });
  if (error) {
    tile.reads.clear();
    tile.lease = {};
    end->end(error);
    return;
  }
  offload::TileJob job = writing_job(range, work, end);
  if (plan::update_sends_weights(plan_.units[range.unit])) {  // they are waited for
    pipeline_->push(std::move(job), std::move(tile.lease));
  } else {
    end->weights_current();
    unwritten_.push_back({std::move(job), std::move(tile.lease)});
  }
}

void UpdateTiles::write_next() {
  Unwritten tile = std::move(unwritten_.front());
  unwritten_.pop_front();
  pipeline_->push(std::move(tile.job), std::move(tile.lease));
}

}  // namespace sluice::train
