#include "update/read_ahead.hpp"

#include <algorithm>
#include <exception>

namespace sluice::train {

ReadAhead::ReadAhead(offload::BufferRing& ring, std::vector<std::uint64_t> counts,
                     std::uint64_t tile_count, BeginReads begin_reads)
    : ring_(ring),
      counts_(std::move(counts)),
      tile_count_(tile_count),
      begin_reads_(std::move(begin_reads)),
      at_work_(counts_.size(), 0) {}

void ReadAhead::expect_updates() {
  MutexLock lock(mutex_);
  expected_.clear();
  for (std::size_t u = 0; u < counts_.size(); ++u) {
    if (counts_[u] > 0) expected_.push_back(u);
  }
}

void ReadAhead::begin_work(std::size_t unit, bool updates) {
  MutexLock lock(mutex_);
  ++at_work_[unit];
  if (updates)
    expected_.erase(std::remove(expected_.begin(), expected_.end(), unit), expected_.end());
}

void ReadAhead::end_work(std::size_t unit) {
  MutexLock lock(mutex_);
  --at_work_[unit];
}

// The expected units before the first one at work. Later units are left out, because no tiles will
// be free for them.
std::vector<std::size_t> ReadAhead::readable_units() const {
  MutexLock lock(mutex_);
  std::vector<std::size_t> readable;
  for (const std::size_t unit : expected_) {
    if (at_work_[unit] > 0) break;
    readable.push_back(unit);
  }
  return readable;
}

void ReadAhead::start() {
  std::optional<offload::TileLease> lease = ring_.try_acquire();
  if (!lease) return;
  for (const std::size_t unit : readable_units()) {
    for (std::uint64_t begin = 0; begin < counts_[unit]; begin += tile_count_) {
      if (tiles_.count(Key(unit, begin)) > 0) continue;
      try {
        offload::Tickets reads =
            begin_reads_(tile_at(unit, begin, counts_[unit], tile_count_), lease->bytes());
        tiles_.emplace(Key(unit, begin), Tile{std::move(*lease), std::move(reads)});
      } catch (const std::exception&) {
        return;  // the update reads again, and reports the error
      }
      lease = ring_.try_acquire();
      if (!lease) return;
    }
  }
}

bool ReadAhead::has(const TileRange& range) const {
  return tiles_.count(Key(range.unit, range.begin)) > 0;
}

std::optional<ReadAhead::Tile> ReadAhead::take(const TileRange& range) {
  const auto found = tiles_.find(Key(range.unit, range.begin));
  if (found == tiles_.end()) return std::nullopt;
  Tile tile = std::move(found->second);
  tiles_.erase(found);
  return tile;
}

void ReadAhead::forget(std::size_t unit) {
  tiles_.erase(tiles_.lower_bound(Key(unit, 0)), tiles_.lower_bound(Key(unit + 1, 0)));
}

}  // namespace sluice::train
