#pragma once
// Updates of a small model with gradients that the test gives, on any tier and by any optimizer.

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/plan/make_plan.hpp"
#include "small_run.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "temp_dir.hpp"
#include "train/device/stand_in_gpu.hpp"

namespace sluice::train::test {

// An optimizer with values that differ from its defaults, and its parameter groups.
struct OptimizerCase {
  const char* name = "";
  config::OptimizerConfig optimizer = {};
  config::GroupsConfig groups = {};
};
inline void PrintTo(const OptimizerCase& each, std::ostream* out) {
  *out << each.name;
}

// Every rule, and Adam with groups.
inline std::vector<OptimizerCase> optimizer_cases() {
  using Type = config::OptimizerType;
  const config::GroupConfig embedding{
      .match = {"*.wte.weight", "*.wpe.weight"}, .lr = 3e-4, .weight_decay = 0.02};
  const config::GroupConfig first_block{.match = {"transformer.h.0.*"}, .lr = 2e-3};
  config::GroupsConfig groups{{embedding, first_block}, true};
  groups.entries[1].beta1 = 0.8;
  groups.entries[1].beta2 = 0.95;
  const config::OptimizerConfig adamw{.weight_decay = 0.1};
  const config::OptimizerConfig momentum{
      .type = Type::sgd, .lr = 1e-2, .weight_decay = 0.01, .momentum = 0.9, .dampening = 0.1};
  config::GroupsConfig sgd_groups{{embedding}, true};
  sgd_groups.entries[0].momentum = 0.5;
  return {
      {"AdamW", adamw, {}},
      {"Adam", {.type = Type::adam, .beta2 = 0.99, .weight_decay = 0.01}, {}},
      {"AMSGrad", {.beta2 = 0.9, .weight_decay = 0.1, .amsgrad = true}, {}},
      {"Adagrad",
       {.type = Type::adagrad,
        .lr = 1e-2,
        .eps = 1e-10,
        .weight_decay = 0.01,
        .lr_decay = 0.01,
        .initial_accumulator_value = 0.1},
       {}},
      {"Lion", {.type = Type::lion, .beta2 = 0.99, .eps = 0, .weight_decay = 0.1}, {}},
      {"Momentum", momentum, {}},
      {"Nesterov",
       {.type = Type::sgd, .lr = 1e-2, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true},
       {}},
      {"SGD", {.type = Type::sgd, .lr = 1e-2, .weight_decay = 0.01}, {}},
      {"AdamWInGroups", adamw, groups},
      {"AMSGradInGroups", {.weight_decay = 0.1, .amsgrad = true}, groups},
      {"LionInGroups", {.type = Type::lion, .eps = 0, .weight_decay = 0.1}, {{embedding}, true}},
      {"MomentumInGroups", momentum, sgd_groups},
  };
}

// Where a run has its states. stand_in_gpu: on a device that only copies reach.
enum class Where { device, stand_in_gpu, host, nvme };

struct UpdateSetup {
  OptimizerCase optimizer = {};
  Where where = Where::host;
  DType dtype = DType::bf16;
  config::MasterFormat master = config::MasterFormat::split;
  config::MomentFormat moments = config::MomentFormat::fp32;
  config::SchedulerConfig scheduler = {};
  double gradient_scale = 0.1;  // of normal numbers
  float gradient_factor = 1;    // as clipping and the loss scale give it
};

// Owns the run and its swap directory. Only one exists at a time: each counts LibTorch's tensors
// against its own budget.
class OptimizerUpdates {
 public:
  explicit OptimizerUpdates(const UpdateSetup& setup)
      : gradient_scale_(setup.gradient_scale),
        gradient_factor_(setup.gradient_factor),
        plan_(plan_of(setup, dir_.path())),
        resources_(plan_, {SwapMode::create}, nullptr,
                   setup.where == Where::stand_in_gpu ? make_stand_in_gpu(offload::kUnlimited)
                                                      : make_run_device(plan_, nullptr)),
        flow_(resources_) {
    fill_states(resources_, first_values);
  }

  const plan::Plan& plan() const { return plan_; }
  RunResources& resources() { return resources_; }
  std::size_t units() const { return plan_.layouts.size(); }

  // Weights between -0.02 and 0.02.
  static void first_values(std::uint64_t first, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = (static_cast<float>((first + i) % 97) - 48) / 2400;
  }
  // The gradient of a unit at a step, in fp32.
  torch::Tensor gradient(std::size_t unit, std::int64_t step) const {
    torch::manual_seed(static_cast<std::uint64_t>(step) * 1000 + unit);
    return torch::randn({static_cast<std::int64_t>(plan_.layouts[unit].flat_count)}) *
           gradient_scale_;
  }

  void take_step(std::int64_t step) {
    flow_.begin_step();
    UpdateSettings settings =
        settings_of_update(plan_, step, config::learning_rate(plan_.config, step));
    settings.step.gradient_factor = gradient_factor_;
    flow_.update_immediately(settings);
    for (std::size_t u = units(); u-- > 0;) {
      flow_.begin_unit(u);
      tensor_over(resources_.units[u]->gradients(), plan_.compute_dtype).copy_(gradient(u, step));
      flow_.send_unit(u);
    }
    flow_.finish_moves();
    zero::GatherStall stall;
    flow_.finish_updates(stall);
  }

  torch::Tensor weights(std::size_t unit) { return gathered_weights(resources_, unit); }

 private:
  static plan::Plan plan_of(const UpdateSetup& setup, const std::string& directory) {
    using Home = config::OffloadConfig::Device;
    config::TrainConfig config = small_config();
    config.optimizer = setup.optimizer.optimizer;
    config.groups = setup.optimizer.groups;
    config.scheduler = setup.scheduler;
    config.bf16 = setup.dtype == DType::bf16;
    config.fp16.enabled = setup.dtype == DType::fp16;
    config.sluice.master = setup.master;
    config.sluice.moments = setup.moments;
    config.sluice.seed = 7;
    const bool on_device = setup.where == Where::device || setup.where == Where::stand_in_gpu;
    const Home home = on_device ? Home::none : setup.where == Where::nvme ? Home::nvme : Home::cpu;
    config.zero.offload_optimizer.device = config.zero.offload_param.device = home;
    if (home == Home::nvme) {
      config.zero.offload_optimizer.directories = {directory};
      config.zero.offload_param.directories = {directory};
    }
    plan::MachineFacts machine = plan::probe_machine(config);
    machine.device.host_addressable = setup.where != Where::stand_in_gpu;
    return plan::make_plan(config, small_model(), plan::Placement::configured, machine);
  }

  const sluice::test::TempDir dir_;
  const double gradient_scale_;
  const float gradient_factor_;
  plan::Plan plan_;
  RunResources resources_;
  GradientFlow flow_;
};

}  // namespace sluice::train::test
