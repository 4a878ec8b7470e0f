#include "state_updater.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/tile_pipeline.hpp"

namespace sluice::train {

using offload::Tickets;
using offload::Tier;
using Bytes = std::span<std::byte>;

namespace {

constexpr std::size_t kStates = models::kStateCount;

// Where one unit's states are: a shard each in a store, or memory.
struct StateHome {
  bool in_store = false;
  std::array<std::size_t, kStates> shards{};  // indices in the store
  std::array<offload::TieredBytes, kStates> memory;
};

// One tile's place in its unit.
struct TileRange {
  std::size_t unit = 0;
  std::uint64_t begin = 0;  // element of the shard
  std::uint64_t count = 0;
};

template <typename T>
std::span<T> as(Bytes bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

cpu_adam::GradientSpan gradient_span(Bytes bytes, DType dtype) {
  if (dtype == DType::bf16) return std::span<const Bf16>(as<Bf16>(bytes));
  return std::span<const float>(as<float>(bytes));
}

cpu_adam::WeightSpan weight_span(Bytes bytes, DType dtype) {
  if (dtype == DType::bf16) return as<Bf16>(bytes);
  return as<float>(bytes);
}

// The weight as it follows from the master: rounded to nearest even, as the update writes it.
void write_weights(std::span<const float> master, Bytes weights, DType dtype) {
  if (dtype == DType::fp32) {
    std::copy(master.begin(), master.end(), as<float>(weights).begin());
    return;
  }
  std::transform(master.begin(), master.end(), as<Bf16>(weights).begin(),
                 [](float value) { return to_bf16(value); });
}

// A task's ticket ends when its last tile has; the first error wins.
class Countdown {
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

}  // namespace

class StateUpdater::Impl {
 public:
  explicit Impl(const UpdaterResources& resources)
      : resources_(resources),
        plan_(*resources.plan),
        tile_(plan::update_tile(plan_.units, plan_.update_tile_count)),
        offsets_(plan::update_tile_offsets(tile_, plan_.compute_dtype)) {
    for (std::size_t u = 0; u < plan_.units.size(); ++u) homes_.push_back(make_home(u));
    if (offsets_.total > 0) {
      ring_.emplace(*resources_.host_pool, offsets_.total,
                    static_cast<std::size_t>(plan_.update_tiles), "tiles of the optimizer step");
      pipeline_.emplace(*ring_);
    }
    worker_.emplace("sluice-update");
  }

  ~Impl() {
    worker_.reset();  // runs what was posted, and so drains the pipeline
    pipeline_.reset();
  }

  // What a tile's work consists of. Bytes that are not in memory come from and go to the tile's
  // buffer.
  struct Work {
    bool read_states = false;
    bool read_gradient = false;
    bool write_states = false;
    bool write_weight = false;
    // Runs on the updater's thread with the states (master, moment1, moment2), gradient and weight
    // of the tile.
    std::function<void(const TileRange&, const std::array<Bytes, kStates>& states, Bytes gradient,
                       Bytes weight)>
        compute;
    // After all tiles of the unit have ended well.
    std::function<void()> finish;
  };

  Ticket begin(std::size_t unit, Work work) {
    const std::uint64_t count = shard_count(unit);
    const std::uint64_t per_tile = plan_.update_tile_count;
    const auto tiles = static_cast<std::size_t>((count + per_tile - 1) / per_tile);
    auto countdown = std::make_shared<Countdown>(tiles);  // shared by the unit's tiles
    Ticket ticket = countdown->ticket();
    auto shared_work = std::make_shared<const Work>(std::move(work));  // shared by the unit's tiles
    ++queued_;
    // The worker's own ticket carries nothing: errors go to the countdown.
    detached_.push_back(
        worker_->begin([this, unit, count, per_tile, tiles, countdown, shared_work] {
          for (std::size_t t = 0; t < tiles; ++t) {
            const std::uint64_t first = t * per_tile;
            run_tile({unit, first, std::min(per_tile, count - first)}, shared_work, countdown);
          }
          // Tiles of the next unit follow without a gap; only the last one in the queue drains.
          if (--queued_ == 0 && pipeline_) pipeline_->drain();
        }));
    while (!detached_.empty() && detached_.front().done()) detached_.pop_front();
    return ticket;
  }

  const StateHome& home(std::size_t unit) const { return homes_[unit]; }
  const plan::Plan& plan() const { return plan_; }
  zero::ShardedUnit& unit(std::size_t index) { return *resources_.units[index]; }
  const UpdaterResources& resources() const { return resources_; }
  std::uint64_t shard_count(std::size_t unit) const {
    return plan_.layouts[unit].flat_count / static_cast<std::uint64_t>(plan_.world_size);
  }

  UpdateCounters counters() const {
    MutexLock lock(mutex_);
    return counters_;
  }

 private:
  StateHome make_home(std::size_t u) {
    StateHome home;
    const zero::UnitLayout& layout = plan_.layouts[u];
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
  bool weight_in_tile(std::size_t u) const {
    const plan::UnitPlacement& placement = plan_.units[u];
    return placement.weights == Tier::nvme ||
           (placement.weights == Tier::device && placement.states != Tier::device);
  }

  std::array<Bytes, kStates> state_spans(const TileRange& range, Bytes tile) const {
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

  Bytes compute_span(const TileRange& range, Bytes tile, const offload::TieredBytes& home,
                     bool in_tile, std::uint64_t tile_offset) const {
    const std::size_t element = size_of(plan_.compute_dtype);
    if (in_tile) return tile.subspan(tile_offset, range.count * element);
    return home.memory().subspan(range.begin * element, range.count * element);
  }

  Bytes gradient_of(const TileRange& range, Bytes tile) const {
    const offload::TieredBytes& home = resources_.units[range.unit]->gradients_home();
    return compute_span(range, tile, home, !home.in_memory(), offsets_.gradient);
  }
  Bytes weight_of(const TileRange& range, Bytes tile) const {
    const offload::TieredBytes& home = resources_.units[range.unit]->weights_home();
    return compute_span(range, tile, home, weight_in_tile(range.unit), offsets_.weight);
  }

  Ticket read_file(const offload::TieredBytes& home, const TileRange& range, Bytes data) {
    const offload::FileRange part =
        home.range().part(range.begin * size_of(plan_.compute_dtype), data.size());
    return resources_.io->begin_read(*part.file, part.offset_bytes, data);
  }

  Tickets begin_reads(const TileRange& range, const Work& work, Bytes tile) {
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

  Tickets begin_writes(const TileRange& range, const Work& work, Bytes tile) {
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

  void compute(const TileRange& range, const Work& work, Bytes tile) {
    const auto begin = std::chrono::steady_clock::now();
    const Bytes gradient = work.read_gradient ? gradient_of(range, tile) : Bytes{};
    const Bytes weight = work.write_weight ? weight_of(range, tile) : Bytes{};
    work.compute(range, state_spans(range, tile), gradient, weight);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    MutexLock lock(mutex_);
    counters_.compute_seconds += seconds;
  }

  void run_tile(const TileRange& range, const std::shared_ptr<const Work>& work,
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

  const UpdaterResources resources_;
  const plan::Plan& plan_;
  const plan::UpdateTile tile_;
  const plan::UpdateTileOffsets offsets_;
  std::vector<StateHome> homes_;
  std::optional<offload::BufferRing> ring_;
  std::optional<offload::TilePipeline> pipeline_;  // driven by the worker's thread
  std::atomic<int> queued_{0};
  std::deque<Ticket> detached_;  // the caller's side
  mutable Mutex mutex_;
  UpdateCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::optional<Worker> worker_;
};

StateUpdater::StateUpdater(const UpdaterResources& resources)
    : impl_(std::make_unique<Impl>(resources)) {}
StateUpdater::~StateUpdater() = default;
UpdateCounters StateUpdater::counters() const {
  return impl_->counters();
}

namespace {

// Reads after this see the unit's new states.
std::function<void()> publish(offload::SwapStore* store, const StateHome& home) {
  if (!home.in_store) return {};
  return [store, shards = home.shards] {
    for (const std::size_t shard : shards) store->finish_update(shard);
  };
}

}  // namespace

Ticket StateUpdater::begin_update(std::size_t unit, const cpu_adam::AdamConfig& config,
                                  const cpu_adam::AdamStep& step) {
  Impl* impl = impl_.get();
  const DType dtype = impl->plan().compute_dtype;
  Impl::Work work;
  work.read_states = work.read_gradient = work.write_states = work.write_weight = true;
  work.compute = [impl, config, step, dtype](const TileRange&,
                                             const std::array<Bytes, kStates>& states,
                                             Bytes gradient, Bytes weight) {
    cpu_adam::step(config, step,
                   {as<float>(states[0]), as<float>(states[1]), as<float>(states[2]),
                    gradient_span(gradient, dtype), weight_span(weight, dtype)},
                   *impl->resources().executor);
  };
  work.finish = publish(impl->resources().store, impl->home(unit));
  return impl->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_initialise(std::size_t unit, Fill fill) {
  Impl* impl = impl_.get();
  const DType dtype = impl->plan().compute_dtype;
  Impl::Work work;
  work.write_states = work.write_weight = true;
  work.compute = [fill = std::move(fill), dtype](const TileRange& range,
                                                 const std::array<Bytes, kStates>& states, Bytes,
                                                 Bytes weight) {
    fill(range.begin, as<float>(states[0]));
    for (std::size_t s = 1; s < kStates; ++s)
      std::fill(states[s].begin(), states[s].end(), std::byte{0});
    write_weights(as<float>(states[0]), weight, dtype);
  };
  work.finish = publish(impl->resources().store, impl->home(unit));
  return impl->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_restore(std::size_t unit, offload::SwapStore& source) {
  Impl* impl = impl_.get();
  const DType dtype = impl->plan().compute_dtype;
  const bool own = &source == impl->resources().store && impl->home(unit).in_store;
  std::array<std::size_t, kStates> shards{};
  for (std::size_t s = 0; s < kStates; ++s) {
    shards[s] =
        source.index_of(models::shard_name(impl->plan().layouts[unit], static_cast<int>(s)));
  }
  Impl::Work work;
  work.read_states = own;
  work.write_states = !own;
  work.write_weight = true;
  work.compute = [&source, shards, own, dtype](const TileRange& range,
                                               const std::array<Bytes, kStates>& states, Bytes,
                                               Bytes weight) {
    const std::uint64_t offset_bytes = range.begin * sizeof(float);
    if (!own) {
      Tickets reads;
      for (std::size_t s = 0; s < kStates; ++s) {
        reads.push_back(source.begin_read(shards[s], offset_bytes, states[s]));
      }
      finish_all(reads);
    }
    for (std::size_t s = 0; s < kStates; ++s) source.check(shards[s], offset_bytes, states[s]);
    write_weights(as<float>(states[0]), weight, dtype);
  };
  if (!own) work.finish = publish(impl->resources().store, impl->home(unit));
  return impl->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_copy_to(std::size_t unit, offload::SwapStore& target) {
  Impl* impl = impl_.get();
  std::array<std::size_t, kStates> shards{};
  for (std::size_t s = 0; s < kStates; ++s) {
    shards[s] =
        target.index_of(models::shard_name(impl->plan().layouts[unit], static_cast<int>(s)));
  }
  Impl::Work work;
  work.read_states = true;
  work.compute = [&target, shards](const TileRange& range, const std::array<Bytes, kStates>& states,
                                   Bytes, Bytes) {
    Tickets writes;
    for (std::size_t s = 0; s < kStates; ++s) {
      writes.push_back(target.begin_write(shards[s], range.begin * sizeof(float), states[s]));
    }
    finish_all(writes);
  };
  work.finish = [&target, shards] {
    for (const std::size_t shard : shards) target.finish_update(shard);
  };
  return impl->begin(unit, std::move(work));
}

}  // namespace sluice::train
