#pragma once
// A run so small that a test makes many: its configuration, with everything in host memory, and its
// model, resources and weights.

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "step/run_resources.hpp"
#include "train/device/stand_in_gpu.hpp"

namespace sluice::train::test {

inline config::TrainConfig small_config() {
  config::TrainConfig config;
  config.micro_batch_size = config.gradient_accumulation_steps = config.train_batch_size = 1;
  config.bf16 = true;
  config.gradient_clipping = 0;
  config.zero.stage = 3;
  config.zero.offload_optimizer.device = config::OffloadConfig::Device::cpu;
  config.zero.offload_param.device = config::OffloadConfig::Device::cpu;
  config.sluice.device_bytes = {config::ByteBudget::Kind::bytes, 64U << 20U};
  config.sluice.host_bytes = {config::ByteBudget::Kind::bytes, 64U << 20U};
  return config;
}

inline config::ModelConfig small_model() {
  config::ModelConfig model;
  model.n_layer = 2;
  model.n_embd = 64;
  model.n_head = 4;
  model.n_positions = 32;
  model.vocab_size = 256;
  return model;
}

// On the device that the plan is for.
inline RunResources make_resources(const plan::Plan& plan, const SwapStart& start) {
  return {plan, start, nullptr, make_run_device(plan, nullptr)};
}

// First weights of a unit: all equal, and each another one.
inline void ones(std::uint64_t, std::span<float> values) {
  std::ranges::fill(values, 1.0F);
}
inline void near_one(std::uint64_t first, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 1.0F + static_cast<float>((first + i) % 97) / 1000;
}

inline void fill_states(RunResources& resources, const StateUpdater::Fill& fill) {
  std::vector<Ticket> work;
  for (std::size_t u = 0; u < resources.units.size(); ++u)
    work.push_back(resources.updater->begin_initialise(u, fill));
  finish_all(work);
}

// A copy of the weights with which a unit computes.
inline torch::Tensor gathered_weights(RunResources& resources, std::size_t unit) {
  zero::GatherStall stall;
  zero::ShardedUnit& of = *resources.units[unit];
  of.finish_gather(stall);
  torch::Tensor copy = tensor_over(of.weights(), resources.plan.compute_dtype).clone();
  of.release();
  return copy;
}
inline std::vector<torch::Tensor> weights_of(RunResources& resources) {
  std::vector<torch::Tensor> weights;
  for (std::size_t u = 0; u < resources.units.size(); ++u)
    weights.push_back(gathered_weights(resources, u));
  return weights;
}

// A run whose gradients a test sends by hand: on the host, or on a stand-in for the plan's GPU. All
// weights are 1 at first.
class FlowRun {
 protected:
  explicit FlowRun(plan::Plan plan)
      : plan_(std::move(plan)),
        resources_(plan_, {SwapMode::create}, nullptr,
                   plan_.device.host_addressable ? make_run_device(plan_, nullptr)
                                                 : make_stand_in_gpu(plan_.planned.tiers.device)),
        flow_(resources_) {
    fill_states(resources_, ones);
  }

  std::size_t last() const { return plan_.layouts.size() - 1; }

  // Gradients of 1 for every parameter of the unit, sent; `bad`: the parameter that gets one NaN.
  void send(std::size_t unit, const std::string& bad = "") {
    flow_.begin_unit(unit);
    const torch::Tensor flat = tensor_over(resources_.units[unit]->gradients(), DType::bf16);
    for (const zero::ParamLayout& param : plan_.layouts[unit].params) {
      const auto first = static_cast<std::int64_t>(param.offset_count);
      flat.narrow(0, first, static_cast<std::int64_t>(param.count)).add_(1.0);
      if (param.name == bad) flat[first + 7] = std::numeric_limits<float>::quiet_NaN();
    }
    flow_.send_unit(unit);
  }

  // The error of a step whose updates begin as gradients arrive, with a gradient of
  // transformer.h.1.ln_2.weight that is non-finite, after a finite one of another unit.
  std::string error_of_a_later_gradient() {
    flow_.begin_step();
    flow_.update_immediately(kUpdate);
    send(last());
    return sluice::test::message_of<Error>([&] {
      send(2, "transformer.h.1.ln_2.weight");
      flow_.finish_moves();
    });
  }

  // The first weight of a unit.
  float weight_of(std::size_t unit) { return gathered_weights(resources_, unit)[0].item<float>(); }

  // Makes weights of 1 weights of 0.5.
  const UpdateSettings kUpdate{{cpu_adam::AdamConfig{.learning_rate = 0.5}}, {.step = 1}};
  const plan::Plan plan_;
  RunResources resources_;
  GradientFlow flow_;
};

}  // namespace sluice::train::test
