#include "step/run_resources.hpp"

#include <algorithm>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/nvme/drive_rates.hpp"
#include "sluice/nvme/file_system.hpp"
#include "sluice/offload/arena_source.hpp"
#include "sluice/offload/direct_storage.hpp"
#include "sluice/offload/swap_directory.hpp"

namespace sluice::train {

using offload::Tier;

namespace {

offload::Durability to_store(config::Durability durability) {
  switch (durability) {
    case config::Durability::process:
      return offload::Durability::process;
    case config::Durability::power:
      return offload::Durability::power;
    case config::Durability::none:
      return offload::Durability::none;
  }
  return offload::Durability::process;
}

std::uint64_t hidden_size_bytes(const plan::Plan& plan) {
  return checked_mul(checked_mul(static_cast<std::uint64_t>(plan.config.micro_batch_size),
                                 static_cast<std::uint64_t>(plan.model.n_positions)),
                     static_cast<std::uint64_t>(plan.model.n_embd) * size_of(plan.compute_dtype));
}

bool has_files(const plan::Plan& plan) {
  return !plan.directories.states.empty() || !plan.directories.scratch.empty();
}

// Bytes of the scratch file: everything on NVMe but the optimizer states, each range on whole
// pages.
std::uint64_t scratch_bytes(const plan::Plan& plan) {
  std::uint64_t sum = 0;
  const std::uint64_t hidden = align_up(hidden_size_bytes(plan), offload::kPageBytes);
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlacement& unit = plan.units[u];
    const std::uint64_t shard =
        align_up(plan.layouts[u].flat_count / static_cast<std::uint64_t>(plan.config.world_size) *
                     size_of(plan.compute_dtype),
                 offload::kPageBytes);
    if (unit.weights == Tier::nvme) sum += shard;
    if (unit.gradients == Tier::nvme && !unit.frozen) sum += shard;
    sum +=
        static_cast<std::uint64_t>(std::count(unit.inputs.begin(), unit.inputs.end(), Tier::nvme)) *
        hidden;
  }
  return sum;
}

offload::MoverOptions mover_options(const plan::Plan& plan, offload::DirectReader* direct) {
  return {std::max<std::size_t>(plan.rings.mover.tile_bytes, offload::kPageBytes),
          static_cast<std::size_t>(std::max(plan.rings.mover.tiles, 3)), direct};
}

}  // namespace

std::unique_ptr<nvme::IoEngine> make_io_engine(const plan::Plan& plan, std::string& choice,
                                               Trace* trace) {
  const config::AioConfig& aio = plan.config.aio;
  const auto depth = static_cast<unsigned>(aio.queue_depth);
  const config::IoConfig& io = plan.config.sluice.io;
  const std::size_t drives =
      1 + std::max(plan.directories.states_further.size(), plan.directories.scratch_further.size());
  std::vector<std::unique_ptr<nvme::IoBackend>> backends;
  for (std::size_t i = 0; i < drives; ++i) {
    nvme::BackendChoice backend = nvme::make_backend(
        nvme::parse_backend(io.backend), depth, static_cast<unsigned>(plan.schedule.threads.io),
        io.submit_polling ? nvme::SubmitPolling::on : nvme::SubmitPolling::off);
    choice = "I/O by " + std::string(backend.backend->name()) +
             (backend.why_not_better.empty() ? "" : ": " + backend.why_not_better);
    SLUICE_CHECK(!plan.config.sluice.strict || backend.why_not_better.empty(),
                 "\"strict\": true does not allow: " + choice);
    backends.push_back(std::move(backend.backend));
  }
  return std::make_unique<nvme::IoEngine>(
      std::move(backends), nvme::IoEngineOptions{static_cast<std::uint32_t>(aio.block_size), depth,
                                                 static_cast<unsigned>(io.reads_per_write), trace});
}

RunResources::RunResources(const plan::Plan& the_plan, SwapMode mode, Trace* the_trace)
    : RunResources(the_plan, mode, the_trace, make_run_device(the_plan, the_trace)) {}

RunResources::RunResources(const plan::Plan& the_plan, SwapMode mode, Trace* the_trace,
                           RunDevice given)
    : plan(the_plan), trace(the_trace), compute(std::move(given)) {
  make_pools();
  if (has_files(plan)) {
    io = make_io_engine(plan, io_choice, trace);
    open_files(mode);
  }
  probe_direct_storage();
  mover = std::make_unique<offload::Mover>(*device,
                                           plan.rings.mover.tile_bytes > 0 ? io.get() : nullptr,
                                           plan.rings.mover.tile_bytes > 0 ? &staging() : nullptr,
                                           mover_options(plan, direct_reader.get()));
  communicator = zero::make_single_rank();
  gather_communicator = zero::make_single_rank();
  gather_worker = std::make_unique<Worker>("sluice-gather");
  executor = make_executor(plan.schedule.threads.optimizer);
  make_units();
  UpdaterResources updater_resources{.plan = &plan,
                                     .units = {},
                                     .device = device.get(),
                                     .host_pool = &staging(),
                                     .io = io.get(),
                                     .store = store.get(),
                                     .executor = executor.get(),
                                     .trace = trace};
  std::vector<bool> keep;
  for (std::size_t u = 0; u < units.size(); ++u) {
    updater_resources.units.push_back(units[u].get());
    keep.push_back(plan.units[u].gathered_until_backward);
  }
  updater = std::make_unique<StateUpdater>(updater_resources);
  note_registration();
  make_inputs();
  const config::ZeroConfig& zero = plan.config.zero;
  prefetcher = std::make_unique<zero::Prefetcher>(
      updater_resources.units, keep,
      zero::PrefetchLimits{plan.schedule.prefetch_units, zero.prefetch_bucket_size,
                           zero.max_live_parameters});
}

void RunResources::note_place(const std::string& directory, const std::string& why_buffered) {
  const std::string caution = nvme::file_system_caution(directory);
  if (!caution.empty()) io_choice += "; " + caution;
  if (why_buffered.empty()) return;
  io_choice += "; through the page cache, since " + why_buffered;
  SLUICE_CHECK(!plan.config.sluice.strict, "\"strict\": true does not allow: " + io_choice);
}

// Registered or not is io_uring's matter: the other backends have nothing to register.
void RunResources::note_registration() {
  if (!io || io->backend_name() != "io_uring") return;
  const std::string why =
      updater->why_unregistered().empty() ? mover->why_unregistered() : updater->why_unregistered();
  if (why.empty()) return;
  io_choice += "; memory is not registered with it: " + why;
  SLUICE_CHECK(!plan.config.sluice.strict, "\"strict\": true does not allow: " + io_choice);
}

// While nothing else has memory of the device or of the tiles.
void RunResources::probe_direct_storage() {
  if (!compute.gpu || plan.rings.mover.tile_bytes == 0 || plan.directories.scratch.empty()) return;
  offload::SwapPlace place(plan.directories.scratch);
  place.further = plan.directories.scratch_further;
  place.weights.assign(place.directories().size(), 1);
  offload::DirectStorage storage =
      offload::probe_direct_storage(*device, *io, staging(), mover_options(plan, nullptr), place);
  io_choice += "; " + storage.line;
  direct_reader = std::move(storage.reader);
}

bool RunResources::states_are_durable() const {
  return plan.states_all_on_nvme();
}

void RunResources::make_pools() {
  SLUICE_CHECK(device->host_addressable() == plan.device.host_addressable,
               "the plan is for another kind of device");
  host_pool = std::make_unique<offload::MemoryPool>(
      Tier::host, plan.budget.host_bytes.value_or(offload::kUnlimited),
      offload::make_host_source());
  if (plan.planned.pinned_staging) {
    // Locked, and registered with the device, once and as a whole; all that is taken from it stays
    // until the run ends.
    pinned_pool = std::make_unique<offload::MemoryPool>(
        Tier::pinned, offload::kUnlimited,
        std::make_unique<offload::ArenaSource>(device->make_pinned_source(),
                                               plan.planned.pinned_bytes, Tier::pinned),
        host_pool.get());
  }
}

// The directories with their shares: as configured, else as fast as the drives are measured to be.
offload::SwapPlace RunResources::make_place(const std::string& directory,
                                            const std::vector<std::string>& further) {
  offload::SwapPlace place(directory);
  place.further = further;
  if (further.empty()) return place;
  const config::IoConfig& configured = plan.config.sluice.io;
  place.weights = configured.drive_weights;
  std::string why = "as configured";
  const std::vector<std::string> directories = place.directories();
  if (place.weights.empty()) {
    // A run that is at work in one of them is not to be disturbed.
    std::vector<offload::DirectoryLock> held;
    for (const std::string& each : directories)
      held.emplace_back(each, offload::DirectoryLock::Mode::exclusive);
    constexpr nvme::LoadPattern kPatterns[] = {nvme::LoadPattern::mixed};
    const auto measured =
        nvme::measure_drive_rates(directories, kPatterns,
                                  {.backend = nvme::parse_backend(configured.backend),
                                   .io_threads = static_cast<unsigned>(plan.schedule.threads.io)});
    const std::vector<double> rates = measured.empty() ? std::vector<double>{} : measured.front();
    if (rates.empty()) {
      place.weights.assign(directories.size(), 1);
      why = "as if they were equally fast: one has too little space to measure in";
    } else {
      place.weights = nvme::stripe_weights(rates);
      why = "for at the same time they moved";
      for (std::size_t i = 0; i < rates.size(); ++i)
        why += (i == 0 ? " " : " and ") + format_bytes(static_cast<std::uint64_t>(rates[i]));
      why += " a second";
    }
  }
  io_choice += "; striped over";
  for (std::size_t i = 0; i < directories.size(); ++i)
    io_choice += (i == 0 ? " " : " : ") + directories[i] + " x" + std::to_string(place.weights[i]);
  io_choice += ", " + why;
  log(LogLevel::info, io_choice);
  return place;
}

// Shares are part of where the bytes lie: they stay for the life of a run.
void RunResources::check_weights(const std::vector<unsigned>& weights) const {
  const std::vector<unsigned>& wanted = plan.config.sluice.io.drive_weights;
  if (wanted.empty() || wanted == weights || plan.directories.states_further.empty()) return;
  std::string kept;
  for (const unsigned weight : weights)
    kept += (kept.empty() ? "[" : ", ") + std::to_string(weight);
  const std::string text =
      "\"drive_weights\" are not changed while a run lasts: it was begun with " + kept +
      "], and goes on with that";
  SLUICE_CHECK(!plan.config.sluice.strict, "\"strict\": true does not allow: " + text);
  log(LogLevel::warn, text);
}

void RunResources::open_files(SwapMode mode) {
  if (!plan.directories.states.empty()) {
    std::vector<zero::UnitLayout> stored;
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      if (plan.units[u].states == Tier::nvme) stored.push_back(plan.layouts[u]);
    }
    // Some states in memory: the directory alone cannot be resumed from, so one slot is enough.
    const offload::Durability durability =
        states_are_durable() ? to_store(plan.config.sluice.durability) : offload::Durability::none;
    offload::SwapPlace place(plan.directories.states);
    place.further = plan.directories.states_further;
    if (mode == SwapMode::create)
      place = make_place(plan.directories.states, plan.directories.states_further);
    store = mode == SwapMode::open
                ? offload::SwapStore::open(place, *io, durability, nvme::DirectIo::automatic)
                : offload::SwapStore::create(
                      place, *io,
                      models::state_shards(stored, plan.state_format, plan.config.world_size),
                      durability, nvme::DirectIo::automatic);
    check_weights(store->place().weights);
    note_place(plan.directories.states, store->why_buffered());
    for (const std::string& further : plan.directories.states_further) note_place(further, "");
  }
  const std::uint64_t needed = scratch_bytes(plan);
  if (needed == 0) return;
  offload::SwapPlace place(plan.directories.scratch);
  if (plan.directories.scratch != plan.directories.states) {
    place = make_place(plan.directories.scratch, plan.directories.scratch_further);
    for (const std::string& directory : place.directories()) {
      scratch_locks.emplace_back(directory, offload::DirectoryLock::Mode::exclusive);
      offload::remove_dead_files(directory);
    }
  } else if (store) {
    place = store->place();
  }
  scratch =
      std::make_unique<offload::ScratchFile>(place, "spill", needed, nvme::DirectIo::automatic);
  for (const nvme::SwapFile& part : scratch->file().parts())
    scratch_registrations.push_back(io->register_file(part));
  if (plan.directories.scratch != plan.directories.states)
    note_place(plan.directories.scratch, scratch->file().why_buffered());
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
      return offload::TieredBytes(scratch->take(size_bytes));
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
                                   .gathers = TraceRow(trace, "gather"),
                                   .stalls = {*device, TraceRow(trace, "stalls")}};
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const zero::UnitLayout& layout = plan.layouts[u];
    const std::uint64_t shard = layout.flat_count /
                                static_cast<std::uint64_t>(plan.config.world_size) *
                                size_of(plan.compute_dtype);
    units.push_back(std::make_unique<zero::ShardedUnit>(
        layout, unit_context,
        make_home(plan.units[u].weights, shard, "weights of unit " + layout.name),
        plan.units[u].gradients_use_slots || plan.units[u].frozen
            ? offload::TieredBytes()
            : make_home(plan.units[u].gradients, shard, "gradients of unit " + layout.name)));
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
            make_home(tier, hidden_size_bytes(plan), "input of unit " + plan.layouts[u].name);
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
