#include "step/run_resources.hpp"

#include <algorithm>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/arena_source.hpp"
#include "sluice/offload/direct_storage.hpp"
#include "sluice/plan/storage_choices.hpp"
#include "sluice/zero/device_ranks.hpp"

namespace sluice::train {

using offload::Tier;

namespace {

offload::MoverOptions mover_options(const plan::Plan& plan, offload::DirectReader* direct) {
  return {std::max<std::size_t>(plan.rings.mover.tile_bytes, offload::kPageBytes),
          static_cast<std::size_t>(std::max(plan.rings.mover.tiles, 3)), direct};
}

// Absent in forked children, such as workers that load data: a step writes to nearly all of it, and
// would copy it for a child that lives.
std::unique_ptr<offload::MemoryPool> make_host_pool(const plan::Plan& plan) {
  return std::make_unique<offload::MemoryPool>(
      Tier::host, plan.budget.host_bytes.value_or(offload::kUnlimited),
      offload::make_host_source(offload::InChildren::absent));
}

// One arena, locked and registered with the device as a whole. Its blocks stay until the run ends.
std::unique_ptr<offload::MemoryPool> make_pinned_pool(const plan::Plan& plan,
                                                      offload::Device& device,
                                                      offload::MemoryPool& host_pool) {
  if (!plan.planned.pinned_staging) return nullptr;
  return std::make_unique<offload::MemoryPool>(
      Tier::pinned, offload::kUnlimited,
      std::make_unique<offload::ArenaSource>(device.make_pinned_source(), plan.planned.pinned_bytes,
                                             Tier::pinned),
      &host_pool);
}

RunDevice checked(RunDevice device, const plan::Plan& plan) {
  SLUICE_CHECK(device.device->host_addressable() == plan.device.host_addressable,
               "the plan is for another kind of device");
  return device;
}

zero::SumFormat sum_format(const plan::Plan& plan) {
  const config::TrainConfig& config = plan.config;
  zero::SumFormat format;
  if (config.world_size == 1) return format;
  const config::ReductionConfig& reduction = config.zero.reduction;
  format = {reduction.wire_dtype, reduction.divisor_before_sum(config.world_size)};
  SLUICE_CHECK(plan.device.host_addressable || format.is_plain(config.gradient_dtype()),
               "communication_data_type, prescale_gradients and gradient_predivide_factor are for "
               "ranks that compute on the CPU: gradients on a GPU are summed in their own type, "
               "undivided; remove the key");
  return format;
}

}  // namespace

RunResources::RunResources(const plan::Plan& the_plan, const SwapStart& start, Trace* the_trace,
                           RunDevice given, RankLinks ranks)
    : plan(the_plan),
      trace(the_trace),
      compute(checked(std::move(given), the_plan)),
      links(std::move(ranks)),
      host_pool(make_host_pool(the_plan)),
      pinned_pool(make_pinned_pool(the_plan, *compute.device, *host_pool)),
      files(the_plan, start, the_trace) {
  probe_direct_storage();
  mover = std::make_unique<offload::Mover>(
      *device, plan.rings.mover.tile_bytes > 0 ? files.io.get() : nullptr,
      plan.rings.mover.tile_bytes > 0 ? &staging() : nullptr,
      mover_options(plan, direct_reader.get()));
  communicator = for_device(std::move(links.communicator));
  gather_communicator = for_device(std::move(links.gather_communicator));
  SLUICE_CHECK(communicator->world_size() == plan.config.world_size &&
                   gather_communicator->world_size() == plan.config.world_size,
               "a plan for " + std::to_string(plan.config.world_size) +
                   " ranks, and communicators of " + std::to_string(communicator->world_size()));
  gather_worker = std::make_unique<Worker>("sluice-gather");
  if (communicator->world_size() > 1) {
    arrival_worker = std::make_unique<Worker>("sluice-arrive");
    reduce_worker = std::make_unique<Worker>("sluice-reduce");
  }
  executor = make_executor(plan.schedule.threads.optimizer, ExecutorKind::automatic,
                           priority_of_updates(plan));
  make_units();
  UpdaterResources updater_resources{
      .plan = &plan,
      .units = {},
      .device = device.get(),
      .host_pool = &staging(),
      .io = files.io.get(),
      .store = files.store.get(),
      .executor = executor.get(),
      .trace = trace,
      .issue_step = plan.device_updates() ? compute.issue_step : IssueStep()};
  std::vector<bool> stays_gathered;
  for (std::size_t u = 0; u < units.size(); ++u) {
    updater_resources.units.push_back(units[u].get());
    stays_gathered.push_back(plan.units[u].gathered_until_backward);
  }
  updater = std::make_unique<StateUpdater>(updater_resources);
  state_copies = std::make_unique<StateCopies>(plan, *host_pool);
  note_registration();
  make_inputs();
  const config::ZeroConfig& zero = plan.config.zero;
  prefetcher = std::make_unique<zero::Prefetcher>(
      updater_resources.units, stays_gathered,
      zero::PrefetchLimits{plan.schedule.prefetch_units, zero.prefetch_bucket_size,
                           zero.max_live_parameters});
  rates = std::make_unique<config::LearningRates>(plan.config);
}

// A communicator whose calls the units can make with the device's memory.
std::unique_ptr<zero::Communicator> RunResources::for_device(
    std::unique_ptr<zero::Communicator> ranks) {
  if (!ranks) return zero::make_single_rank();
  if (ranks->world_size() == 1 || ranks->on_device() || device->host_addressable()) return ranks;
  return zero::make_staged_communicator(std::move(ranks),
                                        {.device = device.get(), .memory = &staging()});
}

// Only io_uring registers memory; the other backends have nothing to register.
void RunResources::note_registration() {
  if (!files.io || files.io->backend_name() != "io_uring") return;
  const std::string why =
      updater->why_unregistered().empty() ? mover->why_unregistered() : updater->why_unregistered();
  if (why.empty()) return;
  files.choices.push_back("memory is not registered with io_uring: " + why);
  plan::refuse_if_strict(plan.config, files.choices.back());
}

// Called while nothing else holds memory of the device or of the tiles.
void RunResources::probe_direct_storage() {
  if (!compute.gpu || plan.rings.mover.tile_bytes == 0 || plan.directories.scratch.empty()) return;
  const std::vector<std::string>& directories = plan.directories.scratch;
  const offload::SwapPlace place(directories, std::vector<unsigned>(directories.size(), 1));
  offload::DirectStorage storage = offload::probe_direct_storage(
      *device, *files.io, staging(), mover_options(plan, nullptr), place);
  files.choices.push_back(storage.line);
  direct_reader = std::move(storage.reader);
}

bool RunResources::commits_swap() const {
  return files.store && plan.states_all_on_nvme();
}

bool RunResources::commits(std::int64_t step, bool ending) const {
  return commits_swap() && (ending || step % plan.config.sluice.commit_every == 0);
}

offload::TieredBytes RunResources::make_home(Tier tier, std::uint64_t size_bytes,
                                             const std::string& what_for) {
  switch (tier) {
    case Tier::device:
      return {tier, device->memory().allocate(size_bytes, what_for)};
    case Tier::pinned:
    case Tier::host:
      return {staging().tier(), staging().allocate(size_bytes, what_for)};
    case Tier::nvme:
      return offload::TieredBytes(files.scratch->take(size_bytes));
  }
  return {};
}

void RunResources::make_units() {
  unit_context = zero::UnitContext{.device = device.get(),
                                   .mover = mover.get(),
                                   .gather_worker = gather_worker.get(),
                                   .gather_communicator = gather_communicator.get(),
                                   .communicator = communicator.get(),
                                   .dtype = plan.compute_dtype,
                                   .gradient_dtype = plan.config.gradient_dtype(),
                                   .gathers = TraceRow(trace, "gather"),
                                   .stalls = {*device, TraceRow(trace, "stalls")},
                                   .reduce_worker = reduce_worker.get(),
                                   .reductions = TraceRow(trace, "reduce"),
                                   .arrival_worker = arrival_worker.get(),
                                   .sums = sum_format(plan),
                                   .executor = executor.get(),
                                   .uses_host_homes = plan.units.front().uses_host_homes,
                                   .sums_in_host_homes = plan.units.front().sums_in_host_homes};
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const zero::UnitLayout& layout = plan.layouts[u];
    const std::uint64_t shard_count = zero::shard_count(layout, plan.config.world_size);
    const bool keeps_whole = plan.keeps_whole_weights(u);
    units.push_back(std::make_unique<zero::ShardedUnit>(
        layout, unit_context,
        make_home(plan.units[u].weights,
                  (keeps_whole ? layout.flat_count : shard_count) * size_of(plan.compute_dtype),
                  "weights of unit " + layout.name),
        plan.units[u].gradients_use_slots || plan.units[u].frozen
            ? offload::TieredBytes()
            : make_home(plan.units[u].gradients,
                        shard_count * size_of(plan.config.gradient_dtype()),
                        "gradients of unit " + layout.name),
        keeps_whole ? zero::WeightsHome::whole : zero::WeightsHome::shard));
    if (plan.units[u].sums_on_device) units.back()->keep_gradient_buffer();
  }
  if (plan.rings.gradient_slots > 0) {
    gradient_slots.emplace(staging(), plan.rings.gradient_slot_bytes,
                           static_cast<std::size_t>(plan.rings.gradient_slots), "gradient slots");
  }
}

void RunResources::make_inputs() {
  std::vector<std::vector<InputStore::Slot>> slots(plan.units.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (const Tier tier : plan.units[u].inputs) {
      InputStore::Slot slot;
      slot.tier = tier;
      if (tier != Tier::device) {
        slot.home =
            make_home(tier, plan.unit_input_bytes(), "input of unit " + plan.layouts[u].name);
      }
      slots[u].push_back(std::move(slot));
    }
  }
  const int puts = plan.config.sluice.overlap ? 2 : 0;
  inputs = std::make_unique<InputStore>(
      *mover, torch::TensorOptions().dtype(torch_dtype(plan.compute_dtype)).device(compute.where),
      puts, std::move(slots), unit_context.stalls);
}

}  // namespace sluice::train
