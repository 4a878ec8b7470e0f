#include "update/tile_io.hpp"

namespace sluice::train {

using offload::Tickets;
using offload::Tier;
using Parts = TileWork::Parts;

TileIo::TileIo(const UpdaterResources& resources, const TilePlacement& placement)
    : resources_(resources),
      placement_(placement),
      plan_(*resources.plan),
      format_(plan_.state_format) {}

Tickets TileIo::begin_reads(const TileRange& range, const TileWork& work, Bytes tile) {
  UpdateCounters moved;
  Tickets tickets = begin_state_reads(range, work.read_states, tile, moved);
  add_state_reads(range, work.read_states, moved);
  if (work.of_checkpoint) {
    UpdateCounters apart;
    apart.checkpoint_read_bytes = moved.nvme_read_bytes;
    moved = apart;
  }
  count(moved);
  if (work.read_gradient) add_gradient_read(range, tile, tickets);
  return tickets;
}

Tickets TileIo::begin_read_ahead(const TileRange& range, Bytes tile) {
  UpdateCounters moved;
  Tickets tickets = begin_state_reads(range, Parts::uncached, tile, moved);
  count(moved);
  return tickets;
}

void TileIo::begin_rest_of_reads(const TileRange& range, const TileWork& work, Bytes tile,
                                 Tickets& reads) {
  UpdateCounters moved;
  add_state_reads(range, work.read_states, moved);
  count(moved);
  add_gradient_read(range, tile, reads);
}

DeviceStates TileIo::device_states(std::size_t unit) const {
  return {*resources_.device, format_, placement_.home(unit),
          resources_.units[unit]->weights_home()};
}

Tickets TileIo::begin_state_reads(const TileRange& range, Parts parts, Bytes tile,
                                  UpdateCounters& moved) const {
  Tickets tickets;
  const StateHome& home = placement_.home(range.unit);
  const StateSpans spans = placement_.states(range, tile);
  for (std::size_t i = 0; i < home.size(); ++i) {
    if (!includes(parts, home[i])) continue;
    const std::uint64_t offset_bytes = range.begin * format_.part(i).element_bytes;
    tickets.push_back(resources_.store->begin_read(*home[i].shard, offset_bytes, spans[i]));
  }
  if (includes_uncached(parts))
    moved.d2h_bytes += begin_state_copies_out(device_states(range.unit), {range, spans}, tickets);
  return tickets;
}

void TileIo::add_state_reads(const TileRange& range, Parts parts, UpdateCounters& moved) const {
  const StateHome& home = placement_.home(range.unit);
  for (std::size_t i = 0; i < home.size(); ++i) {
    const std::uint64_t bytes = range.count * format_.part(i).element_bytes;
    if (includes(parts, home[i])) {
      moved.nvme_read_bytes += bytes;
    } else if (parts != Parts::none && home[i].shard && home[i].place == plan::PartPlace::memory) {
      moved.nvme_cached_bytes += bytes;
    }
  }
}

void TileIo::add_gradient_read(const TileRange& range, Bytes tile, Tickets& tickets) {
  if (!plan::tile_holds_gradient(plan_.units[range.unit])) return;
  const offload::TieredBytes& home = resources_.units[range.unit]->gradients_home();
  const Bytes data = placement_.gradient(range, tile);
  const std::size_t element_bytes = size_of(plan_.config.gradient_dtype());
  UpdateCounters moved;
  if (home.in_memory()) {
    tickets.push_back(
        resources_.device->begin_copy_out(data, device_span_in(home, range, element_bytes), {}));
    moved.d2h_bytes = data.size();
  } else {
    const offload::FileRange part = home.range().part(range.begin * element_bytes, data.size());
    tickets.push_back(resources_.io->begin_read(*part.file, part.offset_bytes, data));
    moved.nvme_read_bytes = data.size();
  }
  count(moved);
}

Tickets TileIo::begin_writes(const TileRange& range, const TileWork& work, Bytes tile,
                             const StateChecksums& checksums) {
  Tickets tickets;
  UpdateCounters moved;
  const StateHome& home = placement_.home(range.unit);
  const StateSpans spans = placement_.states(range, tile);
  for (std::size_t i = 0; i < home.size(); ++i) {
    if (!includes(work.write_states, home[i])) continue;
    const std::uint64_t offset_bytes = range.begin * format_.part(i).element_bytes;
    tickets.push_back(
        resources_.store->begin_write(*home[i].shard, offset_bytes, spans[i], checksums[i]));
    moved.nvme_written_bytes += spans[i].size();
  }
  if (includes_uncached(work.write_states))
    moved.h2d_bytes += begin_state_copies_in(device_states(range.unit), {range, spans}, tickets);
  if (work.write_weight) {
    add_weight_write(range, format_.is_split() ? spans[0] : placement_.weight(range, tile),
                     work.after, tickets, moved);
  }
  count(moved);
  return tickets;
}

void TileIo::add_weight_write(const TileRange& range, Bytes data,
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
    // A GPU serves a busy stream for tens of milliseconds before it turns to another one of that
    // direction. So weights that need not wait go in the stream of the tiles that the GPU updates.
    offload::Device& device = *resources_.device;
    const bool joins = plan_.rings.update.device_tiles > 0 && device.has_passed(after);
    tickets.push_back(
        device.begin_copy_in(weights.device_memory().subspan(offset_bytes, data.size()), data,
                             joins ? offload::ComputePoint() : after));
    moved.h2d_bytes += data.size();
  }
}

void TileIo::count(const UpdateCounters& moved) {
  MutexLock lock(mutex_);
  counters_.nvme_read_bytes += moved.nvme_read_bytes;
  counters_.checkpoint_read_bytes += moved.checkpoint_read_bytes;
  counters_.nvme_cached_bytes += moved.nvme_cached_bytes;
  counters_.nvme_written_bytes += moved.nvme_written_bytes;
  counters_.h2d_bytes += moved.h2d_bytes;
  counters_.d2h_bytes += moved.d2h_bytes;
}

UpdateCounters TileIo::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace sluice::train
