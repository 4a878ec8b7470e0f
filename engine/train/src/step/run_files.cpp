#include "step/run_files.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/nvme/drive_rates.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/scratch_file.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/plan/storage_choices.hpp"

namespace sluice::train {

using offload::Tier;

namespace {

// Bytes of the scratch file: everything on NVMe but the optimizer states, each range on whole
// pages.
std::uint64_t scratch_bytes(const plan::Plan& plan) {
  std::uint64_t sum = 0;
  const std::uint64_t hidden = align_up(plan.unit_input_bytes(), offload::kPageBytes);
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlacement& unit = plan.units[u];
    const auto shard = [&](DType dtype) {
      return align_up(plan.layouts[u].flat_count /
                          static_cast<std::uint64_t>(plan.config.world_size) * size_of(dtype),
                      offload::kPageBytes);
    };
    if (unit.weights == Tier::nvme) sum += shard(plan.compute_dtype);
    if (unit.gradients == Tier::nvme && !unit.frozen) sum += shard(plan.config.gradient_dtype());
    sum +=
        static_cast<std::uint64_t>(std::count(unit.inputs.begin(), unit.inputs.end(), Tier::nvme)) *
        hidden;
  }
  return sum;
}

// The drives' shares decide where bytes lie, so they are fixed for the life of a run.
void check_weights(const plan::Plan& plan, const std::vector<unsigned>& weights) {
  const std::vector<unsigned>& wanted = plan.config.sluice.io.drive_weights;
  if (wanted.empty() || wanted == weights || plan.directories.states.size() < 2) return;
  const std::string text =
      "\"drive_weights\" are fixed for the life of a run: this run began with [" +
      join(weights, ", ") + "] and continues with these";
  plan::refuse_if_strict(plan.config, text);
  log(LogLevel::warn, text);
}

}  // namespace

std::unique_ptr<nvme::IoEngine> make_io_engine(const plan::Plan& plan, std::string& choice,
                                               Trace* trace) {
  const config::AioConfig& aio = plan.config.aio;
  const auto depth = static_cast<unsigned>(aio.queue_depth);
  const config::IoConfig& io = plan.config.sluice.io;
  const std::size_t drives =
      std::max({std::size_t{1}, plan.directories.states.size(), plan.directories.scratch.size()});
  std::vector<std::unique_ptr<nvme::IoBackend>> backends;
  for (std::size_t i = 0; i < drives; ++i) {
    nvme::BackendChoice backend = nvme::make_backend(
        nvme::parse_backend(io.backend), depth, static_cast<unsigned>(plan.schedule.threads.io),
        io.submit_polling ? nvme::SubmitPolling::on : nvme::SubmitPolling::off);
    choice = plan::backend_choice(plan.config, backend);
    backends.push_back(std::move(backend.backend));
  }
  return std::make_unique<nvme::IoEngine>(
      std::move(backends), nvme::IoEngineOptions{static_cast<std::uint32_t>(aio.block_size), depth,
                                                 static_cast<unsigned>(io.reads_per_write), trace});
}

RunFiles::RunFiles(const plan::Plan& plan, const SwapStart& start, Trace* trace)
    : held_(start.held) {
  // Before a file is made: they may be refused.
  std::vector<std::string> of_checkpoints = plan::checkpoint_choices(plan.config);
  if (!plan.swap_directories().empty()) {
    io = make_io_engine(plan, choices.emplace_back(), trace);
    open_store(plan, start.mode);
    open_scratch(plan);
  }
  for (std::string& line : of_checkpoints) choices.push_back(std::move(line));
}

void RunFiles::check_lock(const std::string& directory) const {
  if (held_ == nullptr) return;
  for (const offload::DirectoryLock* lock : held_->locks_of(directory)) lock->check_still_there();
}

bool RunFiles::holds(const std::string& directory) const {
  return held_ != nullptr && held_->holds(directory);
}

void RunFiles::note_place(const plan::Plan& plan, const std::string& directory,
                          const std::string& why_buffered) {
  for (std::string& line : plan::directory_choices(plan.config, directory, why_buffered))
    choices.push_back(std::move(line));
}

// The directories and each drive's share of the bytes: as configured, otherwise in proportion to
// the measured rates.
offload::SwapPlace RunFiles::make_place(const plan::Plan& plan,
                                        const std::vector<std::string>& directories) {
  offload::SwapPlace place(directories, {});
  if (directories.size() == 1) return place;
  const config::IoConfig& configured = plan.config.sluice.io;
  place.weights = configured.drive_weights;
  std::string why = "as configured";
  if (place.weights.empty()) {
    // Measuring must not disturb a run that is active in one of the directories.
    std::vector<offload::DirectoryLock> held;
    held.reserve(directories.size());
    for (const std::string& each : directories) {
      if (!holds(each)) held.emplace_back(each, offload::DirectoryLock::Mode::exclusive);
    }
    constexpr nvme::LoadPattern kPatterns[] = {nvme::LoadPattern::mixed};
    const auto measured =
        nvme::measure_drive_rates(directories, kPatterns,
                                  {.backend = nvme::parse_backend(configured.backend),
                                   .io_threads = static_cast<unsigned>(plan.schedule.threads.io)});
    const std::vector<double> rates = measured.empty() ? std::vector<double>{} : measured.front();
    if (rates.empty()) {
      place.weights.assign(directories.size(), 1);
      why = "in equal shares: one has too little space to measure in";
    } else {
      place.weights = nvme::stripe_weights(rates);
      why = "because at the same time they moved";
      for (std::size_t i = 0; i < rates.size(); ++i)
        why += (i == 0 ? " " : " and ") + format_bytes(static_cast<std::uint64_t>(rates[i]));
      why += " a second";
    }
  }
  std::string line = "striped over";
  for (std::size_t i = 0; i < directories.size(); ++i)
    line += (i == 0 ? " " : " : ") + directories[i] + " x" + std::to_string(place.weights[i]);
  choices.push_back(line + ", " + why);
  return place;
}

void RunFiles::open_store(const plan::Plan& plan, SwapMode mode) {
  const std::vector<std::string>& directories = plan.directories.states;
  if (directories.empty()) return;
  std::vector<zero::UnitLayout> stored;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].states == Tier::nvme) stored.push_back(plan.layouts[u]);
  }
  const Durability durability = plan.state_durability();
  offload::SwapPlace place = mode == SwapMode::create ? make_place(plan, directories)
                                                      : offload::SwapPlace(directories, {});
  place.held = held_;
  store =
      mode == SwapMode::open
          ? offload::SwapStore::open(place, *io, durability, nvme::DirectIo::automatic)
          : offload::SwapStore::create(
                place, *io, models::state_shards(stored, plan.state_format, plan.config.world_size),
                durability, nvme::DirectIo::automatic);
  check_weights(plan, store->place().weights);
  for (std::size_t i = 0; i < directories.size(); ++i)
    note_place(plan, directories[i], i == 0 ? store->why_buffered() : "");
}

void RunFiles::open_scratch(const plan::Plan& plan) {
  const std::uint64_t needed = scratch_bytes(plan);
  if (needed == 0) return;
  const std::vector<std::string>& directories = plan.directories.scratch;
  const bool own_directory = !store || directories.front() != plan.directories.states.front();
  offload::SwapPlace place(directories, {});
  if (own_directory) {
    place = make_place(plan, directories);
    for (const std::string& directory : place.directories()) {
      if (!holds(directory))
        scratch_locks.emplace_back(directory, offload::DirectoryLock::Mode::exclusive);
      offload::remove_dead_files(directory);
    }
  } else {
    place = store->place();
  }
  scratch =
      std::make_unique<offload::ScratchFile>(place, "spill", needed, nvme::DirectIo::automatic);
  for (const nvme::SwapFile& part : scratch->file().parts())
    scratch_registrations.push_back(io->register_file(part));
  if (own_directory) note_place(plan, directories.front(), scratch->file().why_buffered());
}

}  // namespace sluice::train
