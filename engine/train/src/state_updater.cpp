#include "state_updater.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "update_tiles.hpp"

namespace sluice::train {

using offload::Tickets;
using Bytes = std::span<std::byte>;

namespace {

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

// Reads after this see the unit's new states.
std::function<void()> publish(offload::SwapStore* store, const StateHome& home) {
  if (!home.in_store) return {};
  return [store, shards = home.shards] {
    for (const std::size_t shard : shards) store->finish_update(shard);
  };
}

}  // namespace

StateUpdater::StateUpdater(const UpdaterResources& resources)
    : tiles_(std::make_unique<UpdateTiles>(resources)) {}
StateUpdater::~StateUpdater() = default;
UpdateCounters StateUpdater::counters() const {
  return tiles_->counters();
}

const std::string& StateUpdater::why_unregistered() const {
  return tiles_->why_unregistered();
}

Ticket StateUpdater::begin_update(std::size_t unit, const cpu_adam::OptimizerConfig& config,
                                  const cpu_adam::Step& step, offload::TileLease gradients) {
  UpdateTiles& tiles = *tiles_;
  const DType dtype = tiles.plan().compute_dtype;
  TileWork work;
  work.what = "update";
  work.read_states = work.read_gradient = work.write_states = work.write_weight = true;
  work.compute = [executor = tiles.resources().executor, config, step, dtype](
                     const TileRange&, const std::array<Bytes, kStates>& states, Bytes gradient,
                     Bytes weight) {
    cpu_adam::step(config, step,
                   {.master = as<float>(states[0]),
                    .moments = {as<float>(states[1]), as<float>(states[2])},
                    .gradient = gradient_span(gradient, dtype),
                    .weight = weight_span(weight, dtype)},
                   *executor);
  };
  work.finish = publish(tiles.resources().store, tiles.home(unit));
  work.gradients = std::move(gradients);
  return tiles.begin(unit, std::move(work));
}

Ticket StateUpdater::begin_initialise(std::size_t unit, Fill fill) {
  UpdateTiles& tiles = *tiles_;
  const DType dtype = tiles.plan().compute_dtype;
  TileWork work;
  work.what = "initialise";
  work.write_states = work.write_weight = true;
  work.compute = [fill = std::move(fill), dtype](const TileRange& range,
                                                 const std::array<Bytes, kStates>& states, Bytes,
                                                 Bytes weight) {
    fill(range.begin, as<float>(states[0]));
    for (std::size_t s = 1; s < kStates; ++s)
      std::fill(states[s].begin(), states[s].end(), std::byte{0});
    write_weights(as<float>(states[0]), weight, dtype);
  };
  work.finish = publish(tiles.resources().store, tiles.home(unit));
  return tiles.begin(unit, std::move(work));
}

Ticket StateUpdater::begin_restore(std::size_t unit, offload::SwapStore& source) {
  UpdateTiles& tiles = *tiles_;
  const DType dtype = tiles.plan().compute_dtype;
  const bool own = &source == tiles.resources().store && tiles.home(unit).in_store;
  std::array<std::size_t, kStates> shards{};
  for (std::size_t s = 0; s < kStates; ++s) {
    shards[s] =
        source.index_of(models::shard_name(tiles.plan().layouts[unit], static_cast<int>(s)));
  }
  TileWork work;
  work.what = "restore";
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
  if (!own) work.finish = publish(tiles.resources().store, tiles.home(unit));
  return tiles.begin(unit, std::move(work));
}

Ticket StateUpdater::begin_copy_to(std::size_t unit, offload::SwapStore& target) {
  UpdateTiles& tiles = *tiles_;
  std::array<std::size_t, kStates> shards{};
  for (std::size_t s = 0; s < kStates; ++s) {
    shards[s] =
        target.index_of(models::shard_name(tiles.plan().layouts[unit], static_cast<int>(s)));
  }
  TileWork work;
  work.what = "copy";
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
  return tiles.begin(unit, std::move(work));
}

}  // namespace sluice::train
