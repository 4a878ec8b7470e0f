#include "update/state_updater.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "update/device/device_step.hpp"
#include "update/speculation/speculation.hpp"
#include "update/tile_placement.hpp"
#include "update/tile_scheduler.hpp"
#include "update/tile_work.hpp"

namespace sluice::train {

using offload::Tickets;
using offload::Tier;
using Bytes = TileWork::Bytes;
using States = TileWork::States;
using Parts = TileWork::Parts;

namespace {

// Sets a split master from `fill`, one piece at a time.
void fill_split(const StateUpdater::Fill& fill, std::uint64_t offset_count,
                const cpu_adam::SplitMaster& master) {
  constexpr std::size_t kPiece = 16'384;  // 64 KiB of values
  std::vector<float> values(std::min(kPiece, master.low.size()));
  for (std::size_t begin = 0; begin < master.low.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, master.low.size() - begin);
    fill(offset_count + begin, std::span(values).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      const cpu_adam::SplitValue value = cpu_adam::split(values[i]);
      master.weight[begin + i] = value.weight;
      master.low[begin + i] = value.low;
    }
  }
}

// Values of a part of the states as fp32: the bytes themselves, or a copy. Movable only: a copied
// object would show the values of the other one.
class ShownValues {
 public:
  explicit ShownValues(std::span<float> values) : values_(values) {}
  explicit ShownValues(std::size_t count) : copy_(count), values_(copy_) {}
  ShownValues(ShownValues&&) = default;
  ShownValues& operator=(ShownValues&&) = default;
  std::span<float> values() const { return values_; }

 private:
  std::vector<float> copy_;
  std::span<float> values_;
};

ShownValues show_master(const models::StateFormat& format, const States& states) {
  if (!format.is_split()) return ShownValues(as<float>(states[0]));
  const cpu_adam::SplitMaster halves = split_master(states);
  ShownValues shown(halves.low.size());
  for (std::size_t i = 0; i < halves.low.size(); ++i)
    shown.values()[i] = cpu_adam::join({halves.weight[i], halves.low[i]});
  return shown;
}

ShownValues show_moment(const models::StateFormat& format, Bytes bytes) {
  if (format.moments == config::MomentFormat::fp32) return ShownValues(as<float>(bytes));
  const std::span<Bf16> moment = as<Bf16>(bytes);
  ShownValues shown(moment.size());
  std::ranges::transform(moment, shown.values().begin(), [](Bf16 value) { return to_fp32(value); });
  return shown;
}

void keep_master(const plan::Plan& plan, std::span<const float> values, const States& states,
                 Bytes weight) {
  if (!plan.state_format.is_split()) {
    write_weights(values, weight, plan.compute_dtype);
    return;
  }
  const cpu_adam::SplitMaster halves = split_master(states);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const cpu_adam::SplitValue value = cpu_adam::split(values[i]);
    halves.weight[i] = value.weight;
    halves.low[i] = value.low;
  }
}

// Index of each part of a unit in `store`, which has the plan's format.
std::vector<std::size_t> shards_in(const offload::SwapStore& store, const plan::Plan& plan,
                                   std::size_t unit) {
  std::vector<std::size_t> shards;
  for (std::size_t i = 0; i < plan.state_format.part_count(); ++i) {
    shards.push_back(
        store.index_of(models::shard_name(plan.layouts[unit], plan.state_format.part(i))));
  }
  return shards;
}

// Makes the written parts valid in the store: later reads see the new bytes. Empty if `written`
// includes no part.
std::function<void()> publish(offload::SwapStore* store, const StateHome& home, Parts written) {
  std::vector<std::size_t> shards;
  for (const PartHome& part : home) {
    if (includes(written, part)) shards.push_back(*part.shard);
  }
  if (shards.empty()) return {};
  return [store, shards] {
    for (const std::size_t shard : shards) store->finish_update(shard);
  };
}

}  // namespace

StateUpdater::StateUpdater(const UpdaterResources& resources)
    : resources_(resources),
      marks_(resources.plan->units.size()),
      placement_(std::make_unique<TilePlacement>(resources_)),
      scheduler_(std::make_unique<TileScheduler>(resources_, *placement_)),
      speculative_(resources.plan->units.size()) {}
StateUpdater::~StateUpdater() = default;
UpdateCounters StateUpdater::counters() const {
  UpdateCounters counters = scheduler_->counters();
  MutexLock lock(mutex_);
  counters.speculated = speculated_;
  counters.elements = elements_;
  return counters;
}

const std::string& StateUpdater::why_unregistered() const {
  return scheduler_->why_unregistered();
}

void StateUpdater::expect_updates() {
  scheduler_->expect_updates();
}

void StateUpdater::check_updates() const {
  marks_.check_failures();
}

bool StateUpdater::has_failed() const {
  return marks_.has_failed();
}

StateUpdater::Update StateUpdater::begin_update(std::size_t unit, const UpdateSettings& settings,
                                                offload::TileLease gradients) {
  resources_.units[unit]->note_change();
  TileWork work;
  work.what = "update";
  work.after = settings.after;
  work.read_states = Parts::uncached;
  work.write_states = settings.commits ? Parts::all : Parts::uncached;
  work.read_gradient = work.write_weight = true;
  work.compute = [this, settings, first = placement_->first_element(unit)](
                     const TileRange& range, const States& states, Bytes gradient, Bytes weight) {
    cpu_adam::Tile piece = tile_of(*resources_.plan, states, gradient, weight);
    piece.first_element = first + range.begin;
    step_piece(*resources_.plan, resources_.store, settings, range, piece);
  };
  if (resources_.issue_step) {
    work.compute_on_device = [this, settings, first = placement_->first_element(unit)](
                                 const TileRange& range, const DeviceTile& tile, void* stream) {
      issue_update(resources_, settings, range, tile, first, stream);
    };
    work.found_non_finite = [this, settings](const TileRange& range, const DeviceTile& tile) {
      check_finite_at_home(resources_, *placement_, settings, range, tile);
    };
  }
  work.finish = publish(resources_.store, placement_->home(unit), work.write_states);
  marks_.set_only_in_memory(unit, !settings.commits);
  return begin_last_of_update(unit, std::move(work), std::move(gradients));
}

// Begins the work that ends an update.
StateUpdater::Update StateUpdater::begin_last_of_update(std::size_t unit, TileWork work,
                                                        offload::TileLease gradients) {
  const auto failed = marks_.failing(unit);
  work.ended = failed;
  {
    MutexLock lock(mutex_);
    elements_ += placement_->shard_count(unit);
  }
  Update
      update;  // before its source: on the way of an error a ticket waits for a source that lives
  auto current = std::make_shared<TicketSource>();
  update.weights = current->ticket();
  work.weights_current = [current, failed,
                          slot = std::make_shared<offload::TileLease>(std::move(gradients))](
                             const std::exception_ptr& error) {
    *slot = offload::TileLease();
    failed(error);  // who waits may ask check_updates() next
    current->complete(error);
  };
  update.states = scheduler_->begin(unit, std::move(work));
  return update;
}

void StateUpdater::begin_speculative_update(std::size_t unit, const UpdateSettings& settings) {
  Speculative& of_unit = speculative_[unit];
  SLUICE_CHECK(can_speculate(unit) && !of_unit.update, "a speculative update out of order");
  (void)error_of([&] { of_unit.work.finish(); });  // keep_work() has thrown its error
  of_unit.update = std::make_unique<Speculation>(resources_, *placement_, unit);
  of_unit.settings = settings;
  of_unit.work = scheduler_->begin(unit, of_unit.update->update_work(settings));
}

std::optional<StateUpdater::Update> StateUpdater::keep_speculative_update(
    std::size_t unit, const UpdateSettings& settings) {
  SLUICE_CHECK(speculates(unit), "no speculative update to keep");
  if (!settings.updates_as(speculative_[unit].settings)) {
    drop_speculative_update(unit);
    return std::nullopt;
  }
  const std::unique_ptr<Speculation> kept = std::move(speculative_[unit].update);
  {
    MutexLock lock(mutex_);
    ++speculated_.kept;
  }
  return begin_last_of_update(unit, kept->keep_work(settings.after), {});
}

const Ticket& StateUpdater::drop_speculative_update(std::size_t unit) {
  const std::unique_ptr<Speculation> dropped = std::move(speculative_[unit].update);
  SLUICE_CHECK(dropped, "no speculative update to drop");
  const double seconds = dropped->cancel();
  MutexLock lock(mutex_);
  ++speculated_.dropped;
  speculated_.dropped_seconds += seconds;
  return speculative_[unit].work;
}

Ticket StateUpdater::begin_write_back(std::size_t unit) {
  if (!marks_.is_only_in_memory(unit)) return {};
  TileWork work;
  work.what = "write back";
  work.write_states = Parts::cached;
  work.finish = publish(resources_.store, placement_->home(unit), work.write_states);
  // A write that failed is due again.
  work.ended = [this, unit](const std::exception_ptr& error) {
    if (!error) marks_.set_only_in_memory(unit, false);
  };
  return scheduler_->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_initialise(std::size_t unit, Fill fill) {
  resources_.units[unit]->note_change();
  TileWork work;
  work.what = "initialise";
  work.write_states = Parts::all;
  work.write_weight = true;
  work.compute = [&plan = *resources_.plan, fill = std::move(fill)](
                     const TileRange& range, const States& states, Bytes, Bytes weight) {
    if (plan.state_format.is_split()) {
      fill_split(fill, range.begin, split_master(states));
    } else {
      fill(range.begin, as<float>(states[0]));
      write_weights(as<float>(states[0]), weight, plan.compute_dtype);
    }
    set_first_moments(plan, states);
  };
  work.finish = publish(resources_.store, placement_->home(unit), work.write_states);
  return scheduler_->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_visit(std::size_t unit, Access access, const zero::ShardRange& elements,
                                 Visit visit) {
  const bool writes = access == Access::write;
  if (elements.count == 0) {
    if (writes) resources_.units[unit]->note_change();  // by another rank
    return {};
  }
  TileWork work;
  work.what = writes ? "change" : "read";
  work.after = resources_.device->mark_compute();
  work.read_states = Parts::uncached;
  work.write_states = writes ? Parts::all : Parts::none;
  work.write_weight = writes;
  if (!writes || placement_->at_home(unit)) work.elements = elements;
  work.compute = [&plan = *resources_.plan, writes, only = work.elements, visit = std::move(visit)](
                     const TileRange& range, const States& states, Bytes, Bytes weight) {
    const bool has_some = !only || (range.begin < only->begin + only->count &&
                                    only->begin < range.begin + range.count);
    if (!has_some) return;
    const models::StateFormat& format = plan.state_format;
    const ShownValues master = show_master(format, states);
    std::vector<ShownValues> moments;
    Values values{.offset_count = range.begin, .master = master.values(), .moments = {}};
    for (std::size_t i = format.first_moment(); i < format.part_count(); ++i) {
      moments.push_back(show_moment(format, states[i]));
      values.moments.push_back(moments.back().values());
    }
    visit(values);
    if (!writes) return;
    keep_master(plan, values.master, states, weight);
    if (format.moments == config::MomentFormat::fp32) return;
    for (std::size_t i = 0; i < values.moments.size(); ++i) {
      std::ranges::transform(values.moments[i], as<Bf16>(states[format.first_moment() + i]).begin(),
                             [](float value) { return to_bf16(value); });
    }
  };
  if (writes) {
    if (speculates(unit)) drop_speculative_update(unit);
    resources_.units[unit]->note_change();
    marks_.set_only_in_memory(unit, false);
    work.ended = marks_.failing(unit);  // memory may have what the drive does not
    work.finish = publish(resources_.store, placement_->home(unit), work.write_states);
  }
  return scheduler_->begin(unit, std::move(work));
}

TileWork StateUpdater::restoring(std::size_t unit) {
  marks_.set_only_in_memory(unit, false);
  marks_.forget_failure(unit);
  resources_.units[unit]->note_change();
  TileWork work;
  work.what = "restore";
  work.whole_tiles = true;
  work.after = resources_.device->mark_compute();
  work.write_weight = true;
  return work;
}

Ticket StateUpdater::begin_restore(std::size_t unit) {
  const plan::Plan& plan = *resources_.plan;
  TileWork work = restoring(unit);
  work.read_states = Parts::all;
  work.write_states = Parts::none;
  work.compute = [store = resources_.store, shards = shards_in(*resources_.store, plan, unit),
                  &plan](const TileRange& range, const States& states, Bytes, Bytes weight) {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      store->check(shards[i], range.begin * plan.state_format.part(i).element_bytes, states[i]);
    }
    if (!plan.state_format.is_split())
      write_weights(as<float>(states[0]), weight, plan.compute_dtype);
  };
  return scheduler_->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_restore(std::size_t unit, const models::StateReader& saved) {
  const plan::Plan& plan = *resources_.plan;
  const std::uint64_t first =
      zero::shard_range(plan.layouts[unit], plan.config.rank, plan.config.world_size).begin;
  TileWork work = restoring(unit);
  work.read_states = Parts::none;
  work.write_states = Parts::all;
  work.compute = [&saved, &plan, unit, first](const TileRange& range, const States& states, Bytes,
                                              Bytes weight) {
    const models::StateFormat& format = plan.state_format;
    for (std::size_t i = 0; i < format.first_moment(); ++i)
      std::ranges::fill(states[i], std::byte{0});
    set_first_moments(plan, states);
    for (std::size_t i = 0; i < format.part_count(); ++i)
      saved.read(plan.layouts[unit].name, i, first + range.begin, states[i]);
    if (!format.is_split()) write_weights(as<float>(states[0]), weight, plan.compute_dtype);
  };
  work.finish = publish(resources_.store, placement_->home(unit), work.write_states);
  return scheduler_->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_copy_to(std::size_t unit, offload::SwapStore& target) {
  const plan::Plan& plan = *resources_.plan;
  const std::vector<std::size_t> shards = shards_in(target, plan, unit);
  TileWork work;
  work.what = "copy";
  work.whole_tiles = true;
  work.of_checkpoint = true;
  work.read_states = Parts::uncached;
  work.compute = [&target, shards, &plan](const TileRange& range, const States& states, Bytes,
                                          Bytes) {
    Tickets writes;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      writes.push_back(target.begin_write(
          shards[i], range.begin * plan.state_format.part(i).element_bytes, states[i]));
    }
    finish_all(writes);
  };
  work.finish = [&target, shards] {
    for (const std::size_t shard : shards) target.finish_update(shard);
  };
  return scheduler_->begin(unit, std::move(work));
}

Ticket StateUpdater::begin_copy_to(std::size_t unit, const StateSpans& target) {
  TileWork work;
  work.what = "copy";
  work.of_checkpoint = true;
  work.read_states = Parts::uncached;
  work.compute = [target, &plan = *resources_.plan](const TileRange& range, const States& states,
                                                    Bytes, Bytes) {
    const models::StateFormat& format = plan.state_format;
    States to;
    for (std::size_t i = 0; i < format.part_count(); ++i)
      to[i] = target[i].subspan(range.begin * format.part(i).element_bytes, states[i].size());
    copy_states(to, states);
  };
  return scheduler_->begin(unit, std::move(work));
}

}  // namespace sluice::train
