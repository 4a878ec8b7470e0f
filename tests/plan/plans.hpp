#pragma once
// Configurations, models and a machine to plan with.

#include <string>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

using config::ByteBudget;
using Device = config::OffloadConfig::Device;
using offload::Tier;

inline MachineFacts roomy_machine() {
  MachineFacts machine;
  machine.total_memory_bytes = machine.available_memory_bytes = 64 * kGiB;
  machine.memlock_bytes = offload::kUnlimited;
  machine.cores = 2;
  machine.free_disk_bytes = {{"/drive", 1024 * kGiB}};
  return machine;
}

// A GPU with so many free bytes computes there; without `total_bytes` all of its memory is free.
inline MachineFacts machine_with_gpu(std::uint64_t free_bytes, std::uint64_t total_bytes = 0) {
  MachineFacts machine = roomy_machine();
  machine.device.gpu =
      GpuFacts{0, "NVIDIA Test", total_bytes > 0 ? total_bytes : free_bytes, free_bytes};
  machine.device.host_addressable = false;
  return machine;
}

inline config::TrainConfig train_config(Device optimizer, Device param, std::uint64_t device_mib,
                                        std::uint64_t host_mib) {
  config::TrainConfig config;
  config.micro_batch_size = 2;
  config.gradient_accumulation_steps = 4;
  config.train_batch_size = 8;
  config.bf16 = true;
  config.zero.stage = 3;
  config.zero.offload_optimizer.device = optimizer;
  config.zero.offload_param.device = param;
  if (optimizer == Device::nvme) config.zero.offload_optimizer.directories = {"/drive"};
  if (param == Device::nvme) config.zero.offload_param.directories = {"/drive"};
  config.sluice.device_bytes = {ByteBudget::Kind::bytes, device_mib * kMiB};
  config.sluice.host_bytes = {ByteBudget::Kind::bytes, host_mib * kMiB};
  return config;
}

inline config::ModelConfig model_config(std::int64_t layers, std::int64_t width) {
  config::ModelConfig model;
  model.n_layer = layers;
  model.n_embd = width;
  model.n_head = 8;
  model.n_positions = 128;
  model.vocab_size = 256;
  return model;
}

// Plans of eight blocks: on the host, and on a GPU with room.
inline Plan plan_of(const config::TrainConfig& config, const FindRates& find_rates = {}) {
  return make_plan(config, model_config(8, 256), Placement::configured, roomy_machine(),
                   find_rates);
}
inline Plan gpu_plan_of(const config::TrainConfig& config,
                        const MachineFacts& machine = machine_with_gpu(64 * kGiB),
                        const FindRates& find_rates = {}) {
  return make_plan(config, model_config(8, 256), Placement::configured, machine, find_rates);
}

// The row of this component; an empty one when the plan has none.
inline PlanRow row_of(const Plan& plan, const std::string& component) {
  for (const PlanRow& row : plan.planned.rows)
    if (row.component == component) return row;
  return {};
}

// The message of a refused plan; empty when the plan fits.
inline std::string refusal(const config::TrainConfig& config, const config::ModelConfig& model,
                           const MachineFacts& machine,
                           Placement placement = Placement::configured) {
  try {
    make_plan(config, model, placement, machine);
  } catch (const DoesNotFit& error) {
    return error.what();
  }
  return "";
}

}  // namespace sluice::plan
