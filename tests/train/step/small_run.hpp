#pragma once
// A run so small that a test makes many: its configuration, with everything in host memory, and its
// model and resources.

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "step/run_resources.hpp"

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

}  // namespace sluice::train::test
