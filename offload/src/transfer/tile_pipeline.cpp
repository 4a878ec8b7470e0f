#include "sluice/offload/tile_pipeline.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload {

namespace {

void log_thrown_by_done(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    log(LogLevel::error, std::string("the end of a tile job threw: ") + thrown.what());
  } catch (...) {
    log(LogLevel::error, "the end of a tile job threw");
  }
}

}  // namespace

TilePipeline::TilePipeline(BufferRing& ring) : ring_(ring) {
  SLUICE_CHECK(ring.count() >= 3,
               "a tile pipeline needs at least 3 tiles (one read, one computed, "
               "one written), not " +
                   std::to_string(ring.count()));
}

TilePipeline::~TilePipeline() {
  drain();
}

void TilePipeline::push(TileJob job) {
  while (front_has_ended(writing_)) retire_oldest_write();
  std::optional<TileLease> lease = ring_.try_acquire();
  while (!lease && step()) lease = ring_.try_acquire();
  begin_read(std::move(job), lease ? std::move(*lease) : ring_.acquire());
  do_what_can_be_done();
}

void TilePipeline::push(TileJob job, TileLease tile) {
  begin_read(std::move(job), std::move(tile));
  do_what_can_be_done();
}

void TilePipeline::do_what_can_be_done() {
  while (front_has_ended(reading_)) compute_oldest_read();
  write_what_is_computed();
  while (front_has_ended(writing_)) retire_oldest_write();
}

bool TilePipeline::poll() {
  do_what_can_be_done();
  return ring_.try_acquire().has_value();
}

void TilePipeline::drain() {
  while (step()) {
  }
}

bool TilePipeline::step() {
  if (reading_.empty() && computing_.empty() && writing_.empty()) return false;
  // Ended writes first: each frees a tile, in which a read can begin before something is computed.
  // When nothing has ended, the transfer that was begun first is waited for.
  const bool written = front_has_ended(writing_);
  const auto computed = first_computed();
  const bool has_computed = computed != computing_.end();
  const bool waits = !written && !has_computed && !front_has_ended(reading_);
  const bool moves = !reading_.empty() || !writing_.empty();
  if (written || (waits && moves && write_was_begun_first())) {
    retire_oldest_write();
  } else if (has_computed) {
    write(computed);
  } else if (waits && !moves) {
    write(computing_.begin());
  } else {
    compute_oldest_read();
  }
  return true;
}

bool TilePipeline::front_has_ended(const std::list<InFlight>& tiles) {
  return !tiles.empty() && all_done(tiles.front().pending);
}

// One drive serves about in the order it was asked, so when nothing has ended, the oldest transfer
// is likely to end first. A weakness: where reads and writes use different links, a short write
// begun after a long read is noticed only when that read ends, and its tile stays idle until then.
bool TilePipeline::write_was_begun_first() const {
  if (reading_.empty() || writing_.empty()) return reading_.empty();
  return writing_.front().begun < reading_.front().begun;
}

void TilePipeline::begin_read(TileJob job, TileLease lease) {
  InFlight& tile = reading_.emplace_back();
  tile.job = std::move(job);
  tile.lease = std::move(lease);
  tile.begun = next_begun_++;
  tile.error = error_of([&] {
    if (tile.job.begin_read) tile.pending = tile.job.begin_read(tile.lease.bytes());
  });
}

void TilePipeline::compute_oldest_read() {
  computing_.splice(computing_.end(), reading_, reading_.begin());
  InFlight& tile = computing_.back();
  std::exception_ptr read_error = error_of([&] { finish_all(tile.pending); });
  if (!tile.error) tile.error = std::move(read_error);
  if (!tile.error && tile.job.begin_compute) {
    tile.error = error_of([&] { tile.pending = tile.job.begin_compute(tile.lease.bytes()); });
  } else if (!tile.error && tile.job.compute) {
    tile.error = error_of([&] { tile.job.compute(tile.lease.bytes()); });
  }
  write_what_is_computed();
}

std::list<TilePipeline::InFlight>::iterator TilePipeline::first_computed() {
  return std::find_if(computing_.begin(), computing_.end(),
                      [](const InFlight& tile) { return all_done(tile.pending); });
}

void TilePipeline::write_what_is_computed() {
  for (auto at = first_computed(); at != computing_.end(); at = first_computed()) write(at);
}

// Blocks until the tile is computed.
void TilePipeline::write(const std::list<InFlight>::iterator& computed) {
  // Failed jobs queue up here too: they end after those that were written before.
  writing_.splice(writing_.end(), computing_, computed);
  InFlight& tile = writing_.back();
  std::exception_ptr error = error_of([&] { finish_all(tile.pending); });
  if (!tile.error) tile.error = std::move(error);
  tile.begun = next_begun_++;
  if (!tile.error && tile.job.begin_write) {
    tile.error = error_of([&] { tile.pending = tile.job.begin_write(tile.lease.bytes()); });
  }
}

void TilePipeline::retire_oldest_write() {
  InFlight tile = std::move(writing_.front());
  writing_.pop_front();
  std::exception_ptr write_error = error_of([&] { finish_all(tile.pending); });
  if (!tile.error) tile.error = std::move(write_error);
  tile.lease = TileLease();
  if (!tile.job.done) return;
  if (const auto thrown = error_of([&] { tile.job.done(std::move(tile.error)); }))
    log_thrown_by_done(thrown);
}

}  // namespace sluice::offload
