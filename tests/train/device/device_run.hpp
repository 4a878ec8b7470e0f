#pragma once
// Steps of a small model by the program's loop, on a device that the test chooses.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "measure/unit_workspaces.hpp"
#include "run/initial_weights.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "stand_in_gpu.hpp"
#include "step/step_runner.hpp"
#include "temp_dir.hpp"
#include "train/step/small_run.hpp"

namespace sluice::train::test {

using Home = config::OffloadConfig::Device;

struct RunCase {
  const char* name = "";
  Home states = Home::cpu;
  Home weights = Home::cpu;
  config::Activations activations = config::Activations::automatic;
  double clipping = 1;
  double dropout = 0;
  plan::Placement placement = plan::Placement::configured;
  std::optional<std::int64_t> per_pass = {};
  std::optional<std::int64_t> last_pass = {};  // more micro-batches than per_pass
  bool tied = true;
  bool fp16 = false;  // with a scale that overflows at first
  bool fp32_sums = false;
  int layers = 2;
  std::uint64_t host_bytes = 64U << 20U;
  std::optional<std::uint64_t> device_bytes = {};
  bool speculative = false;  // all units have second states
  std::optional<config::MasterFormat> master = {};
  std::optional<config::MomentFormat> moments = {};
  int stage = 3;  // of several ranks
  bool gpu_updates = false;
  double ratio = 1;  // of offload_optimizer
  // Upper halves of split masters are only in weights on the device, whatever the plan says.
  bool halves_in_weights = false;
  // Whether a device updates something.
  bool updates_on_device() const { return gpu_updates || ratio < 1 || states == Home::none; }
};
inline void PrintTo(const RunCase& each, std::ostream* out) {
  *out << each.name;
}

// Moves the upper halves of all units that can be without one in host memory.
inline void leave_halves_to_weights(plan::Plan& plan) {
  for (plan::UnitPlacement& unit : plan.units) unit.half_in_weights = true;
  plan::UpdateRing& ring = plan.rings.update;
  const std::uint64_t before = ring.tile_bytes;
  ring.tile_bytes =
      plan::tile_layout(plan.units, plan.state_format,
                        {plan.compute_dtype, plan.config.gradient_dtype()}, ring.tile_elements)
          .total;
  const std::uint64_t more = static_cast<std::uint64_t>(ring.tiles) * (ring.tile_bytes - before);
  plan.planned.tiers.host += more;
  plan.planned.pinned_bytes += more;
}

struct StepResults {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<bool> updated;
  std::vector<torch::Tensor> weights;
};

inline void expect_same_weights(const std::vector<torch::Tensor>& weights,
                                const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(weights.size(), expected.size());
  for (std::size_t u = 0; u < weights.size(); ++u)
    EXPECT_TRUE(torch::equal(weights[u], expected[u])) << "weights of unit " << u;
}

inline void expect_same(const StepResults& results, const StepResults& expected) {
  EXPECT_EQ(results.losses, expected.losses);
  EXPECT_EQ(results.norms, expected.norms);
  EXPECT_EQ(results.updated, expected.updated);
  expect_same_weights(results.weights, expected.weights);
}

// Keeps the run's data, and its swap directory.
class DeviceRun : public testing::TestWithParam<RunCase> {
 protected:
  static constexpr std::uint64_t kSeed = 5;

  DeviceRun() {
    std::ofstream text(dir_.file("data.txt"));
    for (int i = 0; i < 4000; ++i) text << static_cast<char>('a' + i * i % 23);
  }

  config::TrainConfig config_of(const RunCase& each) const {
    config::TrainConfig config = small_config();
    config.micro_batch_size = 2;
    config.gradient_accumulation_steps = 3;
    config.train_batch_size = 6;
    config.gradient_clipping = each.clipping;
    config.optimizer.lr = 1e-2;
    config.sluice.activations = each.activations;
    config.sluice.host_bytes = {config::ByteBudget::Kind::bytes, each.host_bytes};
    if (each.device_bytes)
      config.sluice.device_bytes = {config::ByteBudget::Kind::bytes, *each.device_bytes};
    config.sluice.passes.each = each.per_pass;
    config.sluice.passes.last = each.last_pass;
    if (each.speculative) config.sluice.updates.speculative_bytes = {};  // auto
    config.sluice.updates.on_gpu = each.gpu_updates;
    config.sluice.master = each.master;
    config.sluice.moments = each.moments;
    config.zero.offload_optimizer.device = each.states;
    config.zero.offload_optimizer.ratio = each.ratio;
    config.zero.offload_param.device = each.weights;
    if (each.states == Home::nvme) config.zero.offload_optimizer.directories = {dir_.path()};
    if (each.weights == Home::nvme) config.zero.offload_param.directories = {dir_.path()};
    config.fp32_gradient_sums = each.fp32_sums;
    if (each.fp16) {
      config.bf16 = false;
      config.fp16.enabled = true;
      config.fp16.initial_scale_power = 18;
      config.fp16.hysteresis = 1;
    }
    return config;
  }
  static config::ModelConfig model_of(const RunCase& each) {
    config::ModelConfig model = small_model();
    model.n_layer = each.layers;
    model.tie_word_embeddings = each.tied;
    model.embd_pdrop = model.attn_pdrop = model.resid_pdrop = each.dropout;
    return model;
  }

  plan::MachineFacts machine_of(const RunCase& each, bool on_gpu) const {
    const config::TrainConfig config = config_of(each);
    plan::MachineFacts machine = plan::probe_machine(config);
    machine.device_choice.clear();
    if (on_gpu) {
      machine.device.host_addressable = false;
      machine.device.gpu = plan::GpuFacts{0, "stand-in", 1U << 30U, 1U << 30U};
      machine.device.workspaces =
          measure_workspaces(config, model_of(each), make_stand_in_gpu(1U << 28U));
    }
    return machine;
  }
  plan::Plan plan_on(const RunCase& each, const plan::MachineFacts& machine) const {
    plan::Plan plan = plan::make_plan(config_of(each), model_of(each), each.placement, machine);
    if (each.halves_in_weights) leave_halves_to_weights(plan);
    return plan;
  }
  plan::Plan plan_of(const RunCase& each, bool on_gpu) const {
    return plan_on(each, machine_of(each, on_gpu));
  }

  // Removes what a run has committed.
  void forget_run() const {
    for (const char* file : {"manifest.json", "states.0.swap", "states.1.swap"})
      std::filesystem::remove(dir_.file(file));
  }
  std::string file(const std::string& name) const { return dir_.file(name); }
  models::Dataset data() const {
    models::Dataset data(dir_.file("data.txt"), 32, 256);
    data.hold_out(0.2);
    return data;
  }

 private:
  const sluice::test::TempDir dir_;
};

}  // namespace sluice::train::test
