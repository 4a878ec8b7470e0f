#include "update/tile_scheduler.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/error_of.hpp"

namespace sluice::train {

TileScheduler::TileScheduler(const UpdaterResources& resources, const TilePlacement& placement)
    : resources_(resources),
      placement_(placement),
      plan_(*resources.plan),
      pieces_(*resources.executor, TraceRow(resources.trace, "update")),
      io_(resources, placement) {
  if (placement_.tile_bytes() > 0) make_tiles();
  if (plan_.rings.update.read_ahead_tiles > 0) make_read_ahead();
  if (resources.issue_step) {
    device_ = std::make_unique<DeviceUpdates>(
        resources, placement,
        [this](const DeviceUpdates::Free& free) { return take_for_device(free); });
  }
  worker_.emplace("sluice-update", priority_of_updates(*resources.plan));
}

TileScheduler::~TileScheduler() {
  worker_.reset();               // runs the posted tasks, and so drains the pipeline
  if (device_) device_->stop();  // its last tiles still wake it
  ahead_.reset();
  pipeline_.reset();
}

void TileScheduler::make_tiles() {
  ring_.emplace(*resources_.host_pool, placement_.tile_bytes(),
                static_cast<std::size_t>(plan_.rings.update.tiles), "tiles of the optimizer step");
  register_tiles(*ring_);
  pipeline_.emplace(*ring_);
}

void TileScheduler::make_read_ahead() {
  ahead_ring_.emplace(*resources_.host_pool, placement_.tile_bytes(),
                      static_cast<std::size_t>(plan_.rings.update.read_ahead_tiles),
                      "states read ahead of their gradients");
  register_tiles(*ahead_ring_);
  std::vector<std::uint64_t> counts(plan_.units.size(), 0);
  for (std::size_t u = 0; u < counts.size(); ++u) {
    if (plan::reads_states_from_nvme(plan_.units[u], plan_.state_format))
      counts[u] = placement_.shard_count(u);
  }
  ahead_.emplace(
      *ahead_ring_, std::move(counts), plan_.rings.update.tile_elements,
      [this](const TileRange& range, Bytes tile) { return io_.begin_read_ahead(range, tile); });
}

void TileScheduler::register_tiles(offload::BufferRing& ring) {
  if (resources_.io == nullptr) return;
  const std::string why = ring.register_with(*resources_.io);
  if (why_unregistered_.empty()) why_unregistered_ = why;
}

// The task's own ticket carries no error: errors go to the countdown.
void TileScheduler::post(std::function<void()> task) {
  detached_.push_back(worker_->begin(std::move(task)));
  while (!detached_.empty() && detached_.front().done()) detached_.pop_front();
}

Ticket TileScheduler::begin(std::size_t unit, TileWork work) {
  if (ahead_) ahead_->begin_work(unit, work.is_update());
  work.ended = [this, unit, then = std::move(work.ended)](const std::exception_ptr& error) {
    if (ahead_) ahead_->end_work(unit);
    if (then) then(error);
    {
      MutexLock lock(mutex_);
      at_work_.erase(unit);
      note_change();
    }
    if (device_) device_->wake();
  };
  const bool whole = is_of_device_alone(unit, work) || needs_no_tile(unit, work);
  const auto [first, end] = whole ? TileSpan{0, 1} : placement_.tiles_of(unit, work.elements);
  auto countdown = std::make_shared<UnitCountdown>(end - first, std::move(work));
  Ticket ticket = countdown->ticket();
  const UnitCountdown* const own = countdown.get();
  {
    MutexLock lock(mutex_);
    waiting_.emplace(unit, Waiting{std::move(countdown), first, end});
    note_change();
  }
  if (device_) device_->wake();
  try {
    post([this] { run_waiting(); });
  } catch (...) {
    MutexLock lock(mutex_);  // else the ticket waits for work that nobody begins
    std::erase_if(waiting_, [own](const auto& each) { return each.second.countdown.get() == own; });
    throw;
  }
  return ticket;
}

void TileScheduler::expect_updates() {
  if (!ahead_) return;
  ahead_->expect_updates();
  post([this] { run_waiting(); });
}

UpdateCounters TileScheduler::counters() const {
  UpdateCounters counters = io_.counters();
  counters.compute_seconds = pieces_.busy_seconds();
  if (device_) {
    const UpdateCounters device = device_->counters();
    counters.h2d_bytes += device.h2d_bytes;
    counters.d2h_bytes += device.d2h_bytes;
    counters.device_elements = device.device_elements;
  }
  return counters;
}

// A unit that arrives begins after the current tiles and pieces, not after the current unit: the
// first units' weights are needed first, and their gradients come last. Late writes and reading
// ahead come after all updates, because nobody waits for them.
void TileScheduler::run_waiting() {
  while (true) {
    const std::uint64_t seen = changes();
    advance();
    if (!pieces_.empty()) {
      pieces_.run([this] { advance(); });
      continue;
    }
    const bool waits = work_waits();
    if (waits && pipeline_ && pipeline_->step()) continue;
    if (!unwritten_.empty()) {
      write_next();
      continue;
    }
    if (ahead_ && !waits) ahead_->start();
    if (pipeline_ && pipeline_->step()) continue;
    if (!sending_.empty()) {
      end_front_send();
      continue;
    }
    if (!waits) return;
    if (device_) wait_for_change_after(seen);  // its work holds back what waits
  }
}

void TileScheduler::advance() {
  std::vector<std::shared_ptr<AheadTile>> computed;
  {
    MutexLock lock(mutex_);
    computed.swap(computed_ahead_);
  }
  for (const std::shared_ptr<AheadTile>& tile : computed) end_tile_read_ahead(*tile);
  while (!sending_.empty() && all_done(sending_.front().tickets)) end_front_send();
  while (true) {
    const bool tile_is_free = pipeline_ && pipeline_->poll();
    const std::optional<NextTile> next = take_tile(tile_is_free);
    if (!next) return;
    begin_tile(*next);
  }
}

void TileScheduler::note_change() {
  ++changes_;
  changed_.notify_all();
}

std::uint64_t TileScheduler::changes() const {
  MutexLock lock(mutex_);
  return changes_;
}

void TileScheduler::wait_for_change_after(std::uint64_t seen) {
  MutexLock lock(mutex_);
  while (changes_ == seen) changed_.wait(mutex_);
}

// Whether work waits that the CPU does, now or later.
bool TileScheduler::work_waits() const {
  MutexLock lock(mutex_);
  return std::any_of(waiting_.begin(), waiting_.end(), [this](const auto& entry) {
    return !is_of_device_alone(entry.first, entry.second.countdown->work());
  });
}

// The first waiting tile that can begin. A tile that needs a free tile of the ring, and finds none,
// does not hold back units that need none. The weights of a whole unit would hold up the tiles of
// earlier units on the link, so they go home in forward order.
std::optional<TileScheduler::NextTile> TileScheduler::take_tile(bool tile_is_free) {
  MutexLock lock(mutex_);
  std::optional<std::size_t> held_back;  // a unit whose earlier work has not begun
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
    const auto& [unit, waiting] = *at;
    const UnitCountdown* const work = waiting.countdown.get();
    const auto working = at_work_.find(unit);
    if (held_back == unit || (working != at_work_.end() && working->second != work)) continue;
    if (is_of_device_alone(unit, work->work())) {
      held_back = unit;
      continue;
    }
    const bool whole = needs_no_tile(unit, work->work());
    NextTile next{
        whole ? whole_of(unit, work->work()) : placement_.range_of(unit, waiting.next_tile),
        waiting.countdown};
    const bool is_ahead = ahead_ && work->work().is_update() && ahead_->has(next.range);
    const bool is_early =
        work->work().sends_unit &&
        (at != waiting_.begin() || (!at_work_.empty() && at_work_.begin()->first < unit));
    if (is_early || (!whole && !tile_is_free && !is_ahead)) {
      held_back = unit;
      continue;
    }
    at_work_[unit] = work;
    if (++at->second.next_tile == at->second.end_tile) waiting_.erase(at);
    return next;
  }
  return std::nullopt;
}

// The first waiting unit that the device can update: its last tile that nobody has taken, or all of
// it.
std::optional<DeviceUpdates::Job> TileScheduler::take_for_device(const DeviceUpdates::Free& free) {
  MutexLock lock(mutex_);
  std::optional<std::size_t> held_back;  // a unit whose earlier work has not begun
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
    auto& [unit, waiting] = *at;
    const UnitCountdown* const work = waiting.countdown.get();
    const auto working = at_work_.find(unit);
    if (held_back == unit) continue;
    held_back = unit;
    if (working != at_work_.end() && working->second != work) continue;
    const bool whole = is_of_device_alone(unit, work->work());
    if (whole ? !free.place_for_unit : !free.tile || !device_->can_do(unit, work->work())) continue;
    at_work_[unit] = work;
    DeviceUpdates::Job next{whole ? TileRange{unit, 0, placement_.shard_count(unit)}
                                  : placement_.range_of(unit, waiting.end_tile - 1),
                            waiting.countdown, whole};
    if (--waiting.end_tile == waiting.next_tile) waiting_.erase(at);
    return next;
  }
  return std::nullopt;
}

void TileScheduler::begin_tile(const NextTile& next) {
  const TileWork& work = next.countdown->work();
  const auto end = std::make_shared<TileEnd>(next.countdown);
  if (const std::exception_ptr error = next.countdown->start()) return end->end(error);
  if (work.sends_unit) return begin_send(next, end);
  if (placement_.at_home(next.range.unit)) return begin_unit_at_home(next, end);
  if (ahead_ && work.is_update()) {
    if (std::optional<ReadAhead::Tile> tile = ahead_->take(next.range))
      return begin_tile_read_ahead(next, end, std::move(*tile));
  } else if (ahead_ && work.write_states == TileWork::Parts::all) {
    ahead_->forget(next.range.unit);
  }
  const auto checksums = std::make_shared<StateChecksums>();
  offload::TileJob job = writing_job(next, end, checksums);
  job.begin_read = [this, next](Bytes tile) {
    return io_.begin_reads(next.range, next.countdown->work(), tile);
  };
  job.begin_compute = [this, next, checksums](Bytes tile) {
    // Before its source, and with room: on the way of an error a ticket waits for a source that
    // lives.
    offload::Tickets tickets(1);
    const auto computed = std::make_shared<TicketSource>();
    tickets.front() = computed->ticket();
    compute(next, tile, *checksums,
            [computed](const std::exception_ptr& error) { computed->complete(error); });
    return tickets;
  };
  pipeline_->push(std::move(job));
}

void TileScheduler::begin_unit_at_home(const NextTile& next, const std::shared_ptr<TileEnd>& end) {
  const auto checksums = std::make_shared<StateChecksums>();  // stay empty
  const std::exception_ptr failed = error_of([&] {
    compute(next, {}, *checksums,
            [end, checksums](const std::exception_ptr& error) { end->end(error); });
  });
  if (failed) end->end(failed);
}

bool TileScheduler::needs_no_tile(std::size_t unit, const TileWork& work) const {
  return placement_.at_home(unit) || work.sends_unit;
}

TileRange TileScheduler::whole_of(std::size_t unit, const TileWork& work) const {
  if (work.elements) return {unit, work.elements->begin, work.elements->count};
  return {unit, 0, placement_.shard_count(unit)};
}

bool TileScheduler::is_of_device_alone(std::size_t unit, const TileWork& work) const {
  return device_ && device_->does_alone(unit, work);
}

void TileScheduler::begin_send(const NextTile& next, const std::shared_ptr<TileEnd>& end) {
  const std::exception_ptr failed = error_of([&] {
    sending_.push_back({io_.begin_writes(next.range, next.countdown->work(), {}, {}), end});
  });
  if (failed) end->end(failed);
}

// Waits for the oldest.
void TileScheduler::end_front_send() {
  Sending sent = std::move(sending_.front());
  sending_.pop_front();
  sent.end->end(error_of([&] { finish_all(sent.tickets); }));
}

// The stages of a tile that follow its computation.
offload::TileJob TileScheduler::writing_job(const NextTile& next,
                                            const std::shared_ptr<TileEnd>& end,
                                            const std::shared_ptr<StateChecksums>& checksums) {
  const bool leaves = plan::update_sends_weights(plan_.units[next.range.unit]);
  offload::TileJob job;
  job.begin_write = [this, next, end, checksums, leaves](Bytes tile) {
    if (!leaves) end->weights_current();
    return io_.begin_writes(next.range, next.countdown->work(), tile, *checksums);
  };
  job.done = [end](const std::exception_ptr& error) { end->end(error); };
  return job;
}

void TileScheduler::begin_tile_read_ahead(const NextTile& next, const std::shared_ptr<TileEnd>& end,
                                          ReadAhead::Tile tile) {
  const auto ahead = std::make_shared<AheadTile>();
  ahead->tile = next;
  ahead->end = end;
  ahead->checksums = std::make_shared<StateChecksums>();
  ahead->error = error_of([&] {
    io_.begin_rest_of_reads(next.range, next.countdown->work(), tile.lease.bytes(), tile.reads);
    finish_all(tile.reads);
  });
  tile.reads.clear();
  ahead->lease = std::move(tile.lease);
  if (ahead->error) return end_tile_read_ahead(*ahead);
  compute(next, ahead->lease.bytes(), *ahead->checksums,
          [this, ahead](const std::exception_ptr& error) {
            ahead->error = error;
            MutexLock lock(mutex_);
            computed_ahead_.push_back(ahead);
          });
}

void TileScheduler::end_tile_read_ahead(AheadTile& tile) {
  if (tile.error) {
    tile.lease = {};
    tile.end->end(tile.error);
    return;
  }
  offload::TileJob job = writing_job(tile.tile, tile.end, tile.checksums);
  if (plan::update_sends_weights(plan_.units[tile.tile.range.unit])) {  // computing waits for them
    pipeline_->push(std::move(job), std::move(tile.lease));
  } else {
    tile.end->weights_current();
    unwritten_.push_back({std::move(job), std::move(tile.lease)});
  }
}

void TileScheduler::write_next() {
  Unwritten tile = std::move(unwritten_.front());
  unwritten_.pop_front();
  pipeline_->push(std::move(tile.job), std::move(tile.lease));
}

void TileScheduler::compute(const NextTile& next, Bytes tile, StateChecksums& checksums,
                            std::function<void(std::exception_ptr)> ended) {
  // The work belongs to the countdown.
  std::shared_ptr<const TileWork> work(next.countdown, &next.countdown->work());
  begin_pieces(pieces_, placement_,
               {next.range, std::move(work), tile, plan_.layouts[next.range.unit].name}, checksums,
               std::move(ended));
}

}  // namespace sluice::train
