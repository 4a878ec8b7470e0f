#include "sluice/plan/make_plan.hpp"

#include <algorithm>

#include "machine/machine_checks.hpp"
#include "placement/placement.hpp"
#include "placement/promotion.hpp"
#include "placement/ring_sizes.hpp"
#include "placement/states_on_gpu.hpp"
#include "search/fastest_plan.hpp"
#include "search/passes.hpp"
#include "search/placement_search.hpp"
#include "search/refusal.hpp"
#include "search/suggestions.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/plan_text.hpp"
#include "totals/disk_needs.hpp"
#include "totals/planned_rows.hpp"
#include "totals/traffic.hpp"

namespace sluice::plan {

using config::ByteBudget;
using offload::Tier;

namespace {

// Memory of the training program outside its tiers (RssAnon + RssShmem), rounded up. Measured on
// x86-64 with LibTorch 2.11.0, after two steps of a one-layer model of width 64.
constexpr std::uint64_t kRuntimeBytes = 192 * kMiB;
// With the CUDA driver and LibTorch's CUDA libraries. An estimate, not measured.
constexpr std::uint64_t kGpuRuntimeBytes = 3 * kGiB;

// The threads that launch forward and backward have these on a GPU's host. On 16 cores updates with
// 16 threads have 130 GB/s where 14 threads have 150, since each launch takes a core from the
// middle of a piece.
constexpr int kCoresOfLaunches = 2;
constexpr int kFewCores = 8;  // too few to spare two

Threads choose_threads(const config::TrainConfig& config, int cores, bool gpu) {
  Threads threads;
  threads.compute = config.sluice.threads.compute.value_or(cores);
  const int spared = gpu && cores >= kFewCores ? kCoresOfLaunches : 0;
  threads.optimizer = config.sluice.threads.optimizer.value_or(cores - spared);
  threads.io = config.sluice.threads.io.value_or(std::max(1, config.aio.intra_op_parallelism));
  return threads;
}

std::uint64_t resolve(const ByteBudget& budget, std::uint64_t available,
                      unsigned automatic_percent) {
  switch (budget.kind) {
    case ByteBudget::Kind::bytes:
      return budget.value;
    case ByteBudget::Kind::percent:
      return available / 100 * budget.value;
    case ByteBudget::Kind::automatic:
      return available / 100 * automatic_percent;
  }
  return 0;
}

// The model to plan for: from a file, or of a loop of the user's own.
struct Subject {
  config::ModelConfig model;
  const OwnModel* own = nullptr;  // null: from a file
};

void describe_units(Plan& plan, const Subject& subject) {
  plan.model = subject.model;
  if (subject.own != nullptr) {
    plan.layouts = subject.own->layouts;
    plan.own.calls = subject.own->calls;
    plan.own.backwards = subject.own->backwards;
    if (plan.own.backwards.empty()) {
      plan.own.backwards.resize(plan.layouts.size(), 0);
      for (const auto& call : plan.own.calls)
        for (const std::size_t layout : call) ++plan.own.backwards[layout];
    }
    plan.own.activation_bytes = subject.own->activation_bytes;
  } else {
    plan.layouts = models::gpt2_units(subject.model, plan.config.world_size);
  }
  plan.groups = models::make_param_groups(plan.config, plan.layouts);
  plan.model_size.bytes_per_parameter = size_of(plan.compute_dtype) +
                                        size_of(plan.config.gradient_dtype()) +
                                        plan.state_format.element_bytes();
  for (const zero::UnitLayout& layout : plan.layouts) {
    plan.model_size.parameters += layout.param_count;
    const std::uint64_t each =
        layout.frozen ? size_of(plan.compute_dtype) : plan.model_size.bytes_per_parameter;
    plan.model_size.state_bytes =
        checked_add(plan.model_size.state_bytes, checked_mul(each, layout.param_count));
  }
}

void set_budgets(Plan& plan, const MachineFacts& machine) {
  const config::SluiceConfig& sluice = plan.config.sluice;
  const std::uint64_t memory = machine.available_memory_bytes;
  if (plan.device.gpu) {
    // The remaining 10 % hold the kernels of LibTorch and its libraries, which load lazily.
    plan.budget.device_bytes = resolve(sluice.device_bytes, plan.device.gpu->free_bytes, 90);
    plan.budget.host_bytes = resolve(sluice.host_bytes, memory, 80);
    return;
  }
  // The device tier (gathered weights, activations) may take 45 % of the free memory, the host tier
  // 35 %. The rest is for the program itself and the page cache.
  plan.budget.device_bytes = resolve(sluice.device_bytes, memory, 45);
  plan.budget.host_bytes = resolve(sluice.host_bytes, memory, 35);
}

Plan describe(const config::TrainConfig& config, const Subject& subject, Placement placement,
              const MachineFacts& machine) {
  Plan plan;
  plan.config = config;
  plan.placement = placement;
  plan.compute_dtype = config.compute_dtype();
  plan.state_format = models::state_format(config);
  describe_units(plan, subject);
  plan.schedule.threads = choose_threads(config, machine.cores, machine.device.gpu.has_value());
  plan.device.host_addressable = machine.device.host_addressable;
  plan.device.gpu = machine.device.gpu;
  plan.device.has_nccl = machine.device.has_nccl;
  plan.device.has_update_kernels = machine.device.has_update_kernels;
  plan.planned.runtime_bytes = plan.device.gpu ? kGpuRuntimeBytes : kRuntimeBytes;
  const bool of_this_shape = machine.device.workspaces &&
                             machine.device.workspaces->micro_batch == config.micro_batch_size &&
                             machine.device.workspaces->n_positions == subject.model.n_positions;
  if (of_this_shape) plan.device.workspaces = machine.device.workspaces;
  if (plan.device.gpu && !plan.device.workspaces && subject.own == nullptr) {
    plan.device.workspaces = models::estimate_gpu_workspaces(
        subject.model, static_cast<std::uint64_t>(config.micro_batch_size),
        size_of(plan.compute_dtype));
  }
  if (placement == Placement::configured) set_budgets(plan, machine);
  return plan;
}

void note_automatic(Plan& plan, const MachineFacts& machine) {
  const auto note = [&](const char* key, const ByteBudget& budget,
                        std::optional<std::uint64_t> value) {
    if (budget.kind == ByteBudget::Kind::automatic && value) {
      plan.choices.push_back(std::string(key) + ": " + format_bytes(*value) +
                             " of the memory that is free now (auto)");
    }
  };
  for (const std::string& choice :
       {machine.device_choice, machine.memory_choice, machine.ranks_choice})
    if (!choice.empty()) plan.choices.push_back(choice);
  note("device_bytes", plan.config.sluice.device_bytes, plan.budget.device_bytes);
  note("host_bytes", plan.config.sluice.host_bytes, plan.budget.host_bytes);
  const config::ThreadsConfig& threads = plan.config.sluice.threads;
  if (!threads.compute || !threads.optimizer || !threads.io) {
    plan.choices.push_back("threads: " + std::to_string(plan.schedule.threads.compute) +
                           " compute, " + std::to_string(plan.schedule.threads.optimizer) +
                           " optimizer, " + std::to_string(plan.schedule.threads.io) + " I/O");
  }
}

// The line about this rank's part of the model, by the ZeRO stage.
void note_ranks(Plan& plan) {
  if (plan.config.world_size == 1) return;
  const std::string ranks = std::to_string(plan.config.world_size) + " ranks";
  const int stage = plan.config.zero.stage;
  plan.choices.push_back(
      stage >= config::kStageOfShardedWeights
          ? "stage 3: weights, gradients and optimizer states are divided over " + ranks +
                "; weights are gathered before each use"
          : "stage " + std::to_string(stage) +
                ": each rank has all weights, which are gathered after an update; gradients and "
                "optimizer states are divided over " +
                ranks +
                (stage == 2   ? ""
                 : stage == 1 ? " (gradients as in stage 2: the results are the same)"
                              : " (as in stage 2: the results are the same)"));
}

void note_attention(Plan& plan) {
  if (plan.own_loop() || plan.model.attn_pdrop == 0 || plan.device.gpu) return;
  plan.choices.push_back(
      "attn_pdrop: the CPU has no fused attention with dropout, so attention goes sequence by "
      "sequence and its scores are in memory");
}

std::vector<std::string> complete(Plan& plan, const StepModel& model, const MachineFacts& machine) {
  std::vector<std::string> problems;
  fill_rows(plan, model);
  if (plan.device.gpu || plan.placement == Placement::configured)
    choose_pinning(plan, machine, problems);
  fill_disks(plan, machine);
  fill_traffic(plan);
  if (plan.placement == Placement::configured) {
    find_least(plan, model);
    for (std::string& line : raised_limits(plan)) plan.choices.push_back(std::move(line));
    if (const std::string line = why_these_tiles(plan); !line.empty()) plan.choices.push_back(line);
    note_automatic(plan, machine);
  }
  note_ranks(plan);
  note_attention(plan);
  note_updates_on_cores(plan);
  check_machine(plan, machine, problems);
  return problems;
}

struct Outcome {
  Plan plan;
  std::vector<std::string> problems;
};

Outcome place_passes(Plan plan, const Preferences& preferences, const MachineFacts& machine) {
  const StepModel step(plan);
  std::vector<std::string> problems;
  if (plan.placement == Placement::resident) {
    place_resident(plan);
  } else {
    PlacedPlan result = find_placement(std::move(plan), step, preferences);
    plan = std::move(result.plan);
    problems = shortfall_lines(plan, result.shortfall);
  }
  for (std::string& problem : complete(plan, step, machine)) problems.push_back(std::move(problem));
  if (plan.config.sluice.strict && plan.placement == Placement::configured) {
    for (std::string& line : downgrades(plan)) problems.push_back(std::move(line));
  }
  return {std::move(plan), std::move(problems)};
}

// The drive has too little room for the states, and other memory may take the rest. A swap
// directory with some of the states cannot be resumed from, so only a run that has asked for no
// durability, or that writes checkpoints, may do so. Host memory alone is no other memory: its
// owner chose NVMe because it is small.
bool may_leave_drive(const Plan& plan) {
  const config::SluiceConfig& sluice = plan.config.sluice;
  const bool is_short = std::any_of(plan.directories.disks.begin(), plan.directories.disks.end(),
                                    [](const DiskNeed& disk) { return disk.is_short(); });
  const bool resumable =
      sluice.durability == Durability::none || !sluice.checkpoints.directory.empty();
  return is_short && may_promote(plan) && resumable &&
         plan.config.zero.offload_optimizer.device == config::OffloadConfig::Device::nvme;
}

// Places a plan. Where the drive is short, the states of the fewest units that make it suffice
// leave it.
Outcome plan_passes(const Plan& plan, const Preferences& preferences, const MachineFacts& machine) {
  Outcome asked = place_passes(plan, preferences, machine);
  if (plan.placement == Placement::resident || !may_leave_drive(asked.plan)) return asked;
  const auto place_off_drive = [&](std::size_t units) {
    Preferences fewer = preferences;
    fewer.units_off_nvme = units;
    return place_passes(plan, fewer, machine);
  };
  std::size_t low = 1;
  std::size_t high = plan.layouts.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (may_leave_drive(place_off_drive(middle).plan)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  Outcome fewest = place_off_drive(low);
  if (!fewest.problems.empty()) return asked;
  if (plan.config.sluice.durability != Durability::none) {
    fewest.plan.choices.push_back(
        "commits: none, because not all states are on NVMe: a killed run resumes from its last "
        "checkpoint");
  }
  return fewest;
}

Outcome plan_once(const config::TrainConfig& config, const Subject& subject, Placement placement,
                  const MachineFacts& machine, const Preferences& preferences = {}) {
  Plan plan = describe(config, subject, placement, machine);
  const auto all = static_cast<std::size_t>(config.gradient_accumulation_steps);
  plan.schedule.passes = {all, all};
  if (plan.own_loop()) {
    plan.schedule.passes = {};
  } else if (const std::optional<PassSizes> asked = asked_passes(config, preferences)) {
    plan.schedule.passes = *asked;
  } else if (plan.device.gpu) {
    // The most micro-batches per pass without recompute.
    for (std::size_t passes = 1; passes <= all; ++passes) {
      if (all % passes != 0) continue;
      plan.schedule.passes = {all / passes, all / passes};
      Outcome tried = plan_passes(plan, preferences, machine);
      if (!tried.problems.empty() || !passes_are_free(tried.plan)) continue;
      if (passes > 1) {
        tried.plan.choices.push_back(
            "micro_batches_per_pass: " + std::to_string(tried.plan.schedule.passes.each) + " of " +
            std::to_string(all) + ": all their activations fit, so nothing is recomputed");
      }
      return tried;
    }
    plan.schedule.passes = {all, all};
  }
  return plan_passes(plan, preferences, machine);
}

// Returns the fastest plan for the same run; `usual` fits. See fastest_plan().
Plan faster_plan(Plan usual, const config::TrainConfig& config, const Subject& subject,
                 const MachineFacts& machine, const FindRates& find_rates) {
  const Placement placement = usual.placement;
  if (placement == Placement::resident) return usual;
  return fastest_plan(std::move(usual), find_rates, [&](const Preferences& preferences) {
    Outcome tried = plan_once(config, subject, placement, machine, preferences);
    return tried.problems.empty() ? std::optional(std::move(tried.plan)) : std::nullopt;
  });
}

Plan make_plan_of(const config::TrainConfig& config, const Subject& subject, Placement placement,
                  const MachineFacts& machine, const FindRates& find_rates) {
  Outcome outcome = plan_once(config, subject, placement, machine);
  models::check_param_groups(config, outcome.plan.layouts);
  if (outcome.problems.empty())
    return faster_plan(std::move(outcome.plan), config, subject, machine, find_rates);
  std::vector<std::string> changes;
  if (placement == Placement::configured) {
    const TryPlan attempt_variant = [&](const Variant& variant) -> std::optional<Plan> {
      Outcome tried = plan_once(variant.config, {variant.model, subject.own}, placement, machine);
      if (!tried.problems.empty()) return std::nullopt;
      return std::move(tried.plan);
    };
    changes = suggest_changes({config, subject.model}, outcome.plan, machine, attempt_variant);
  }
  throw DoesNotFit(refusal(outcome.plan, outcome.problems, changes));
}

}  // namespace

std::string name_of(const GpuFacts& gpu) {
  return "cuda:" + std::to_string(gpu.index) + " (" + gpu.name + ")";
}

Plan make_plan(const config::TrainConfig& config, const OwnModel& model, Placement placement,
               const MachineFacts& machine) {
  SLUICE_CHECK(!model.calls.empty(), "a model without units");
  return make_plan_of(config, {{}, &model}, placement, machine, {});
}

Plan make_plan(const config::TrainConfig& config, const config::ModelConfig& model,
               Placement placement, const MachineFacts& machine, const FindRates& find_rates) {
  SLUICE_CHECK(config.gradient_accumulation_steps <= kMaxMicroBatches,
               "gradient_accumulation_steps is " +
                   std::to_string(config.gradient_accumulation_steps) + ", at most " +
                   std::to_string(kMaxMicroBatches) +
                   " can be planned, since every micro-batch's input of every unit has a place of "
                   "its own: raise train_micro_batch_size_per_gpu instead");
  return make_plan_of(config, {model, nullptr}, placement, machine, find_rates);
}

std::optional<Plan> try_plan(const config::TrainConfig& config, const config::ModelConfig& model,
                             Placement placement, const MachineFacts& machine) {
  Outcome tried = plan_once(config, {model, nullptr}, placement, machine);
  if (!tried.problems.empty()) return std::nullopt;
  return std::move(tried.plan);
}

std::optional<Plan> largest_plan(const config::TrainConfig& config, config::ModelConfig model,
                                 Placement placement, const MachineFacts& machine,
                                 const FindRates& find_rates) {
  const auto plan_of = [&](std::int64_t layers) {
    model.n_layer = layers;
    return try_plan(config, model, placement, machine);
  };
  std::optional<Plan> best = plan_of(1);
  if (!best) return best;
  std::int64_t fits = 1;
  std::int64_t too_many = 2;
  for (; too_many <= kMostLayers; too_many *= 2) {
    std::optional<Plan> plan = plan_of(too_many);
    if (!plan) break;
    best = std::move(plan);
    fits = too_many;
  }
  too_many = std::min(too_many, kMostLayers + 1);
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    std::optional<Plan> plan = plan_of(middle);
    (plan ? fits : too_many) = middle;
    if (plan) best = std::move(plan);
  }
  models::check_param_groups(config, best->layouts);
  const Subject subject{best->model, nullptr};
  return faster_plan(std::move(*best), config, subject, machine, find_rates);
}

}  // namespace sluice::plan
