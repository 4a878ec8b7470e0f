#include "sluice/zero/sharded_unit.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <span>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "wire_sum.hpp"

namespace sluice::zero {

namespace {

// The names of states, in the order of the enums.
const char* name_of(WeightState state) {
  constexpr std::array kNames = {"sharded", "gathering", "gathered"};
  return kNames.at(static_cast<std::size_t>(state));
}
const char* name_of(GradientState state) {
  constexpr std::array kNames = {"none", "accumulating", "reducing", "waiting"};
  return kNames.at(static_cast<std::size_t>(state));
}

template <typename State>
void check_state(const UnitLayout& layout, const char* what, State state, State needed) {
  SLUICE_CHECK(state == needed, "unit " + layout.name + ": its " + what + " are in state " +
                                    name_of(state) + ", this call needs state " + name_of(needed));
}

bool used_in_place(const offload::TieredBytes& home, const UnitContext& context,
                   bool uses_host_homes) {
  if (context.communicator->world_size() > 1) return false;
  if (home.tier() == offload::Tier::device) return true;
  return uses_host_homes && home.in_memory() && home.size_bytes() > 0;
}

// The memory of a home that is used in place.
offload::DeviceSpan memory_of(const offload::TieredBytes& home) {
  if (home.tier() == offload::Tier::device) return home.device_memory();
  const std::span<std::byte> memory = home.host_memory();
  return offload::DeviceSpan(memory.data(), memory.size());
}

const UnitContext& checked(const UnitContext& context) {
  SLUICE_CHECK(context.device != nullptr && context.mover != nullptr &&
                   context.gather_worker != nullptr && context.gather_communicator != nullptr &&
                   context.communicator != nullptr,
               "units need a device, a mover, a gather worker and two communicators");
  return context;
}

}  // namespace

ShardedUnit::ShardedUnit(const UnitLayout& layout, const UnitContext& context,
                         offload::TieredBytes weights_home, offload::TieredBytes gradients_home,
                         WeightsHome kept)
    : layout_(layout),
      context_(checked(context)),
      range_(shard_range(layout, context.communicator->rank(), context.communicator->world_size())),
      weights_home_(std::move(weights_home)),
      gradients_home_(std::move(gradients_home)) {
  if (kept == WeightsHome::whole) {
    whole_home_ = std::move(weights_home_);
    SLUICE_CHECK(whole_home_.size_bytes() >= full_bytes(),
                 "unit " + layout.name + ": a home of " + std::to_string(whole_home_.size_bytes()) +
                     " bytes for whole weights of " + std::to_string(full_bytes()));
    const std::size_t element = size_of(context.dtype);
    weights_home_ = offload::TieredBytes(
        whole_home_.device_memory().subspan(range_.begin * element, range_.count * element));
  }
  check_home(weights_home_, context_.dtype);
  if (gradients_home_.size_bytes() > 0) check_home(gradients_home_, gradient_dtype());
  SLUICE_CHECK(context.gather_communicator->world_size() == 1 ||
                   (context.arrival_worker != nullptr && context.reduce_worker != nullptr),
               "unit " + layout.name + ": several ranks need an arrival and a reduce worker");
}

void ShardedUnit::check_home(const offload::TieredBytes& home, DType dtype) const {
  const std::uint64_t shard_bytes = range_.count * size_of(dtype);
  SLUICE_CHECK(home.size_bytes() >= shard_bytes,
               "unit " + layout_.name + ": a home of " + std::to_string(home.size_bytes()) +
                   " bytes for a shard of " + std::to_string(shard_bytes));
}

ShardedUnit::~ShardedUnit() {
  // Transfers in flight use the buffers: wait for them, and ignore their errors.
  gather_ = Ticket();
  reduce_ = Ticket();
}

std::size_t ShardedUnit::full_bytes() const {
  return layout_.flat_count * size_of(context_.dtype);
}

std::size_t ShardedUnit::full_gradient_bytes() const {
  return layout_.flat_count * size_of(gradient_dtype());
}

void ShardedUnit::transition(WeightState from, WeightState to) {
  check_state(layout_, "weights", weight_state_, from);
  weight_state_ = to;
}

void ShardedUnit::transition(GradientState from, GradientState to) {
  check_state(layout_, "gradients", gradient_state_, from);
  gradient_state_ = to;
}

void ShardedUnit::set_update(Ticket update) {
  note_change();
  update_ = std::make_shared<Ticket>(std::move(update));
}

void ShardedUnit::wait_current(GatherStall& stall) {
  if (!update_) return;
  context_.stalls.finish(*std::exchange(update_, nullptr), stall.update_seconds, "update",
                         layout_.name);
}

bool ShardedUnit::is_used_in_place() const {
  return whole_is_current_ || used_in_place(weights_home_, context_, context_.uses_host_homes);
}

// Shared by the tasks of a gather.
struct ShardedUnit::Gather {
  std::shared_ptr<Ticket> update;  // null: none is awaited
  offload::DeviceSpan full;
  offload::ComputePoint unused;  // compute work from before it may still use the memory
  bool in_place = false;
  bool is_whole = false;
  Ticket fetched;
  Ticket all_gathered;  // the task that fetches writes it
};

void ShardedUnit::begin_gather() {
  SLUICE_CHECK(weight_state_ == WeightState::sharded,
               "unit " + layout_.name + ": gathered twice without a release");
  const auto gather = std::make_shared<Gather>();
  gather->in_place = is_used_in_place();
  gather->is_whole = whole_home_.size_bytes() > 0;
  if (!gather->in_place && !gather->is_whole) {
    gathered_ = context_.device->memory().allocate(full_bytes(), "gathering unit " + layout_.name);
  }
  transition(WeightState::sharded, WeightState::gathering);
  gather->update = std::exchange(update_, nullptr);
  current_at_ = std::chrono::steady_clock::now();
  if (gather->in_place && !gather->update) return;
  gather->full =
      gather->is_whole ? whole_home_.device_memory().first(full_bytes()) : gathered_.device_span();
  gather->unused = context_.device->mark_compute();
  const bool is_alone = context_.gather_communicator->world_size() == 1;
  gather->fetched = context_.gather_worker->begin([this, gather, is_alone] {
    fetch(*gather);
    if (gather->in_place) return;
    if (is_alone) return add_gather(*gather, current_at_);
    gather->all_gathered = begin_all_gather(*gather);
  });
  if (is_alone || gather->in_place) {
    gather_ = std::move(gather->fetched);
    return;
  }
  gather_ = context_.arrival_worker->begin([this, gather] {
    const auto begin = std::chrono::steady_clock::now();
    gather->fetched.finish();
    gather->all_gathered.finish();
    add_gather(*gather, std::max(begin, current_at_));  // the gathers before have ended at `begin`
  });
}

// Blocks until the weights at home are current and this rank's shard has arrived.
void ShardedUnit::fetch(Gather& gather) {
  if (gather.update) gather.update->finish();
  current_at_ = std::chrono::steady_clock::now();
  if (gather.in_place || gather.is_whole) return;
  const std::size_t element = size_of(context_.dtype);
  context_.mover
      ->begin_fetch(weights_home_,
                    gather.full.subspan(range_.begin * element, range_.count * element),
                    gather.unused)
      .finish();
}

Ticket ShardedUnit::begin_all_gather(const Gather& gather) {
  Communicator& ranks = *context_.gather_communicator;
  const std::string label = "the weights of unit " + layout_.name;
  if (ranks.on_device()) return ranks.begin_all_gather(gather.full, gather.unused, label);
  return ranks.begin_all_gather(context_.device->host_view(gather.full), label);
}

void ShardedUnit::add_gather(const Gather& gather,
                             std::chrono::steady_clock::time_point begin) const {
  context_.gathers.add("gather", layout_.name, begin, std::chrono::steady_clock::now(),
                       {{"bytes", static_cast<std::int64_t>(gather.full.size_bytes())}});
}

void ShardedUnit::finish_gather(GatherStall& stall) {
  if (weight_state_ == WeightState::gathered) return;
  if (weight_state_ == WeightState::sharded) begin_gather();
  offload::StallMeter::Stall wait;
  try {
    wait = context_.stalls.wait(gather_);
  } catch (...) {
    gather_ = Ticket();  // waits, if the wait itself failed
    gathered_.reset();
    weight_state_ = WeightState::sharded;
    throw;
  }
  const double until_current = std::chrono::duration<double>(current_at_ - wait.begin).count();
  const double update_seconds = std::clamp(until_current, 0.0, wait.seconds());
  stall.update_seconds += update_seconds;
  stall.fetch_seconds += wait.seconds() - update_seconds;
  record_stall(wait, update_seconds);
  transition(WeightState::gathering, WeightState::gathered);
  whole_is_current_ = whole_home_.size_bytes() > 0;
}

void ShardedUnit::record_stall(const offload::StallMeter::Stall& stall,
                               double update_seconds) const {
  const TraceRow& row = context_.stalls.row();
  const auto current = stall.begin + std::chrono::duration_cast<TraceClock::duration>(
                                         std::chrono::duration<double>(update_seconds));
  if (update_seconds > 0) row.add("update", layout_.name, stall.begin, current);
  if (stall.seconds() > update_seconds) row.add("weights", layout_.name, current, stall.end);
}

offload::DeviceSpan ShardedUnit::weights() const {
  SLUICE_CHECK(weight_state_ == WeightState::gathered,
               "unit " + layout_.name + ": its weights are not on the device");
  if (gathered_) return gathered_.device_span();
  const offload::TieredBytes& home = whole_home_.size_bytes() > 0 ? whole_home_ : weights_home_;
  return memory_of(home).first(full_bytes());
}

void ShardedUnit::release() {
  if (weight_state_ == WeightState::gathering) gather_ = Ticket();
  gathered_.reset();
  weight_state_ = WeightState::sharded;
}

void ShardedUnit::keep_gradient_buffer() {
  kept_ = context_.device->memory().allocate(full_gradient_bytes(),
                                             "sums of gradients of unit " + layout_.name);
  keeps_buffer_ = true;
}

void ShardedUnit::free_accumulated() {
  if (keeps_buffer_ && accumulated_) {
    kept_ = std::move(accumulated_);
  } else {
    accumulated_.reset();
  }
}

offload::DeviceSpan ShardedUnit::begin_accumulate() {
  waited_ = gradient_state_ == GradientState::waiting ? Waited::at_home : Waited::nothing;
  if (waited_ == Waited::at_home) gradient_state_ = GradientState::none;
  transition(GradientState::none, GradientState::accumulating);
  if (used_in_place(gradients_home_, context_, context_.sums_in_host_homes)) {
    return waited_ == Waited::at_home ? offload::DeviceSpan() : gradients();
  }
  if (keeps_buffer_) {
    accumulated_ = std::move(kept_);
    return accumulated_.device_span();
  }
  try {
    accumulated_ = context_.device->memory().allocate(full_gradient_bytes(),
                                                      "gradients of unit " + layout_.name);
  } catch (...) {
    gradient_state_ = waited_ == Waited::at_home ? GradientState::waiting : GradientState::none;
    throw;
  }
  return accumulated_.device_span();
}

void ShardedUnit::restore_accumulated(double& stall_seconds) {
  check_state(layout_, "gradients", gradient_state_, GradientState::accumulating);
  // Only this rank's shard comes back. In its place the other ranks start from zero, so the next
  // reduction adds the new gradients to the sum so far.
  if (waited_ == Waited::at_home && accumulated_) {
    try {
      fetch_accumulated(stall_seconds);
    } catch (...) {
      free_accumulated();
      waited_ = Waited::nothing;
      gradient_state_ = GradientState::waiting;
      throw;
    }
  }
  waited_ = Waited::nothing;
}

void ShardedUnit::fetch_accumulated(double& stall_seconds) {
  Ticket fetch = context_.mover->begin_fetch(gradients_home_, gradient_shard());
  context_.stalls.finish(fetch, stall_seconds, "gradients", layout_.name);
  if (context_.sums.divisor != 1 && context_.communicator->world_size() > 1)
    undo_division(context_.device->host_view(gradient_shard()));
}

// The sum so far will be divided with the gradients that are added to it.
void ShardedUnit::undo_division(std::span<std::byte> sum) const {
  convert_elements({sum.data(), gradient_dtype()}, {sum.data(), gradient_dtype()}, range_.count,
                   {.multiplier = context_.sums.divisor}, context_.executor);
}

offload::DeviceSpan ShardedUnit::gradients() const {
  SLUICE_CHECK(gradient_state_ == GradientState::accumulating,
               "unit " + layout_.name + ": its gradients are not on the device");
  return accumulated_ ? accumulated_.device_span()
                      : memory_of(gradients_home_).first(full_gradient_bytes());
}

offload::DeviceSpan ShardedUnit::gradient_shard() const {
  const std::size_t element = size_of(gradient_dtype());
  return gradients().subspan(range_.begin * element, range_.count * element);
}

// Blocks. On the host, the compute work that made the gradients has ended.
void ShardedUnit::reduce_scatter(offload::DeviceSpan full, const offload::ComputePoint& made) {
  Communicator& ranks = *context_.communicator;
  const std::string label = "the gradients of unit " + layout_.name;
  if (!context_.sums.is_plain(gradient_dtype())) {
    sum_over_wire(ranks, context_.device->host_view(full), gradient_dtype(), context_.sums,
                  context_.executor, label);
  } else if (ranks.on_device()) {
    ranks.begin_reduce_scatter(full, gradient_dtype(), made, label).finish();
  } else {
    ranks.reduce_scatter(context_.device->host_view(full), gradient_dtype(), label);
  }
}

void ShardedUnit::lend_gradients_home(offload::TieredBytes home) {
  check_state(layout_, "gradients", gradient_state_,
              context_.sums_in_host_homes ? GradientState::none : GradientState::accumulating);
  check_home(home, gradient_dtype());
  gradients_home_ = std::move(home);
}

void ShardedUnit::begin_reduce_home(Reduced reduced) {
  check_home(gradients_home_, gradient_dtype());
  const offload::DeviceSpan full = gradients();
  if (context_.communicator->world_size() == 1) {
    if (reduced) reduced(gradient_shard());
    if (accumulated_) reduce_ = context_.mover->begin_store(gradient_shard(), gradients_home_);
    transition(GradientState::accumulating, GradientState::reducing);
    return;
  }
  const offload::ComputePoint made = context_.device->mark_compute();
  reduce_ = context_.reduce_worker->begin(
      [this, full, made, shard = gradient_shard(), reduced = std::move(reduced)] {
        const auto begin = std::chrono::steady_clock::now();
        reduce_scatter(full, made);
        context_.reductions.add("reduce", layout_.name, begin, std::chrono::steady_clock::now(),
                                {{"bytes", static_cast<std::int64_t>(full.size_bytes())}});
        if (reduced) reduced(shard);
        // Compute work issued since does not write the sum.
        context_.mover->begin_store(shard, gradients_home_, made).finish();
      });
  transition(GradientState::accumulating, GradientState::reducing);
}

bool ShardedUnit::reduce_done() const {
  return reduce_.done();
}

void ShardedUnit::finish_reduce(double& stall_seconds) {
  if (gradient_state_ != GradientState::reducing) return;
  if (reduce_error_) std::rethrow_exception(reduce_error_);
  try {
    context_.stalls.finish(reduce_, stall_seconds, "gradients", layout_.name);
  } catch (...) {
    reduce_error_ = std::current_exception();
    throw;
  }
  free_accumulated();
  transition(GradientState::reducing, GradientState::waiting);
}

void ShardedUnit::consume_gradients() {
  transition(GradientState::waiting, GradientState::none);
}

void ShardedUnit::abandon_gradients() {
  reduce_ = Ticket();  // waits, and ignores an error
  reduce_error_ = nullptr;
  free_accumulated();
  waited_ = Waited::nothing;
  gradient_state_ = GradientState::none;
}

}  // namespace sluice::zero
