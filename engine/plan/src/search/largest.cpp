#include "sluice/plan/largest.hpp"

#include "sluice/plan/make_plan.hpp"

namespace sluice::plan {

using Device = config::OffloadConfig::Device;

std::vector<LargestModel> largest_models(const config::TrainConfig& config,
                                         const config::ModelConfig& model,
                                         const MachineFacts& machine) {
  std::vector<LargestModel> models;
  const auto add = [&](const config::TrainConfig& with, const std::string& nvme_path) {
    LargestModel& one = models.emplace_back();
    one.nvme_path = nvme_path;
    const auto plan = largest_plan(with, model, Placement::configured, machine);
    if (!plan) return;
    one.layers = plan->model.n_layer;
    one.parameters = plan->model_size.parameters;
  };
  config::TrainConfig in_memory = config;
  std::string nvme_path;
  for (config::OffloadConfig* offload :
       {&in_memory.zero.offload_param, &in_memory.zero.offload_optimizer}) {
    if (offload->device != Device::nvme) continue;
    nvme_path = offload->directories.front();
    offload->device = Device::cpu;
  }
  add(in_memory, "");
  if (!nvme_path.empty()) add(config, nvme_path);
  return models;
}

}  // namespace sluice::plan
