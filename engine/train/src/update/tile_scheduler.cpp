#include "update/tile_scheduler.hpp"

#include <chrono>
#include <utility>
#include <vector>

#include "sluice/base/error_of.hpp"

namespace sluice::train {

TileScheduler::TileScheduler(const UpdaterResources& resources, const TilePlacement& placement)
    : resources_(resources),
      placement_(placement),
      trace_row_(resources.trace, "update"),
      plan_(*resources.plan),
      io_(resources, placement) {
  if (placement_.tile_bytes() > 0) make_tiles();
  if (plan_.rings.update.read_ahead_tiles > 0) make_read_ahead();
  worker_.emplace("sluice-update");
}

TileScheduler::~TileScheduler() {
  worker_.reset();  // runs the posted tasks, and so drains the pipeline
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
  if (ahead_) {
    ahead_->begin_work(unit, work.is_update());
    work.ended = [this, unit, then = std::move(work.ended)](const std::exception_ptr& error) {
      ahead_->end_work(unit);
      if (then) then(error);
    };
  }
  auto countdown = std::make_shared<UnitCountdown>(placement_.tiles_of(unit), std::move(work));
  Ticket ticket = countdown->ticket();
  {
    MutexLock lock(mutex_);
    waiting_.emplace(unit, Waiting{std::move(countdown)});
  }
  post([this] { run_waiting(); });
  return ticket;
}

void TileScheduler::expect_updates() {
  if (!ahead_) return;
  ahead_->expect_updates();
  post([this] { run_waiting(); });
}

UpdateCounters TileScheduler::counters() const {
  UpdateCounters counters = io_.counters();
  MutexLock lock(mutex_);
  counters.compute_seconds = compute_seconds_;
  return counters;
}

std::optional<TileScheduler::NextTile> TileScheduler::take_tile() {
  MutexLock lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  const auto first = waiting_.begin();
  const std::size_t unit = first->first;
  Waiting& waiting = first->second;
  NextTile next{placement_.range_of(unit, waiting.next_tile), waiting.countdown};
  if (++waiting.next_tile == placement_.tiles_of(unit)) waiting_.erase(first);
  return next;
}

// A unit that arrives begins after the current tile, not after the current unit: the first units'
// weights are needed first, and their gradients come last. Late writes and reading ahead come after
// all updates, because nobody waits for them.
void TileScheduler::run_waiting() {
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

void TileScheduler::run_tile(const TileRange& range,
                             const std::shared_ptr<UnitCountdown>& countdown) {
  const TileWork& work = countdown->work();  // `end` keeps it alive
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
  job.begin_read = [this, range, &work](Bytes tile) { return io_.begin_reads(range, work, tile); };
  job.compute = [this, range, &work](Bytes tile) { compute(range, work, tile); };
  pipeline_->push(std::move(job));
}

// The stages of a tile that follow its computation.
offload::TileJob TileScheduler::writing_job(const TileRange& range, const TileWork& work,
                                            const std::shared_ptr<TileEnd>& end) {
  const bool leaves = plan::update_sends_weights(plan_.units[range.unit]);
  offload::TileJob job;
  job.begin_write = [this, range, &work, end, leaves](Bytes tile) {
    if (!leaves) end->weights_current();
    return io_.begin_writes(range, work, tile);
  };
  job.done = [end](const std::exception_ptr& error) { end->end(error); };
  return job;
}

void TileScheduler::run_tile_read_ahead(const TileRange& range, const TileWork& work,
                                        const std::shared_ptr<TileEnd>& end, ReadAhead::Tile tile) {
  const std::exception_ptr error = error_of([&] {
    io_.begin_rest_of_reads(range, work, tile.lease.bytes(), tile.reads);
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
  if (plan::update_sends_weights(plan_.units[range.unit])) {  // computing waits for the weights
    pipeline_->push(std::move(job), std::move(tile.lease));
  } else {
    end->weights_current();
    unwritten_.push_back({std::move(job), std::move(tile.lease)});
  }
}

void TileScheduler::write_next() {
  Unwritten tile = std::move(unwritten_.front());
  unwritten_.pop_front();
  pipeline_->push(std::move(tile.job), std::move(tile.lease));
}

void TileScheduler::compute(const TileRange& range, const TileWork& work, Bytes tile) {
  if (!work.compute) return;
  const auto begin = std::chrono::steady_clock::now();
  const Bytes gradient = work.read_gradient ? placement_.gradient(range, tile) : Bytes{};
  const Bytes weight = work.write_weight ? placement_.weight(range, tile) : Bytes{};
  work.compute(range, placement_.states(range, tile), gradient, weight);
  const auto end = std::chrono::steady_clock::now();
  trace_row_.add(
      work.what, plan_.layouts[range.unit].name, begin, end,
      {{"tile", static_cast<std::int64_t>(range.begin / plan_.rings.update.tile_elements)},
       {"elements", static_cast<std::int64_t>(range.count)}});
  MutexLock lock(mutex_);
  compute_seconds_ += std::chrono::duration<double>(end - begin).count();
}

}  // namespace sluice::train
