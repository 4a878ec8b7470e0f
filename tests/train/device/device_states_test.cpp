// Optimizer states on a device that is not host addressable: updates go through tiles and give the
// same bits.

#include "update/device/device_states.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "sluice/plan/make_plan.hpp"
#include "stand_in_gpu.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "train/step/small_run.hpp"

namespace sluice::train {
namespace {

using Home = config::OffloadConfig::Device;

struct Case {
  const char* name;
  Home states;
  Home weights;
  config::MasterFormat master;
  bool kernels = true;  // the device can compute updates
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}

plan::Plan plan_of(const Case& each, bool on_host) {
  config::TrainConfig config = test::small_config();
  config.zero.offload_optimizer.device = each.states;
  config.zero.offload_param.device = each.weights;
  config.sluice.master = each.master;
  plan::MachineFacts machine = plan::probe_machine(config);
  machine.device.host_addressable = on_host;
  machine.device.has_update_kernels = each.kernels;
  return plan::make_plan(config, test::small_model(), plan::Placement::configured, machine);
}

// Makes three updates of every unit, with gradients that differ by element.
class Updates {
 public:
  Updates(const Case& each, bool on_host)
      : plan_(plan_of(each, on_host)),
        resources_(plan_, {SwapMode::create}, nullptr,
                   on_host ? make_run_device(plan_, nullptr)
                           : test::make_stand_in_gpu(offload::kUnlimited)),
        flow_(resources_) {
    test::fill_states(resources_, test::near_one);
    after_initialise_ = resources_.updater->counters();
    for (int step = 1; step <= kSteps; ++step) take_step(step);
  }

  std::vector<torch::Tensor> weights() { return test::weights_of(resources_); }
  std::size_t units() const { return plan_.layouts.size(); }
  const plan::Plan& plan() const { return plan_; }
  double squared_norm() const { return flow_.squared_norm(); }
  std::uint64_t h2d_of_a_step() const {
    return (resources_.updater->counters().h2d_bytes - after_initialise_.h2d_bytes) / kSteps;
  }
  std::uint64_t d2h_of_a_step() const {
    return (resources_.updater->counters().d2h_bytes - after_initialise_.d2h_bytes) / kSteps;
  }

 private:
  static constexpr int kSteps = 3;

  void take_step(int step) {
    flow_.begin_step();
    flow_.update_immediately(
        {{cpu_adam::AdamConfig{.learning_rate = 0.01, .weight_decay = 0.1}}, {.step = step}});
    for (std::size_t u = units(); u-- > 0;) {
      flow_.begin_unit(u);
      const torch::Tensor flat = tensor_over(resources_.units[u]->gradients(), DType::bf16);
      flat.copy_(torch::arange(flat.numel()).remainder(31).sub(15).mul(0.01 * step));
      flow_.send_unit(u);
    }
    flow_.finish_moves();
    zero::GatherStall stall;
    flow_.finish_updates(stall);
  }

  plan::Plan plan_;
  RunResources resources_;
  GradientFlow flow_;
  UpdateCounters after_initialise_;
};

class DeviceStatesTest : public testing::TestWithParam<Case> {};

struct Result {
  std::vector<torch::Tensor> weights;
  double squared_norm = 0;
};
// Only one Updates exists at a time: each counts LibTorch's tensors against its own budget.
Result result_of(const Case& each, bool on_host) {
  Updates updates(each, on_host);
  return {updates.weights(), updates.squared_norm()};
}

TEST_P(DeviceStatesTest, GiveTheBitsOfHostAddressableStates) {
  const Result on_host = result_of(GetParam(), true);
  const Result on_gpu = result_of(GetParam(), false);
  EXPECT_NEAR(on_gpu.squared_norm / on_host.squared_norm, 1, 1e-5);
  for (std::size_t u = 0; u < on_gpu.weights.size(); ++u) {
    EXPECT_TRUE(torch::equal(on_gpu.weights[u], on_host.weights[u])) << u;
    EXPECT_GT(on_gpu.weights[u].to(torch::kFloat32).std().item<double>(), 0) << u;
  }
}

TEST_P(DeviceStatesTest, MoveThePlannedBytes) {
  Updates on_gpu(GetParam(), false);
  // The updates' own bytes, without unit inputs and the mover's traffic.
  std::uint64_t h2d = 0;
  std::uint64_t d2h = 0;
  for (std::size_t u = 0; u < on_gpu.units(); ++u) {
    const std::uint64_t count = on_gpu.plan().layouts[u].flat_count;
    if (GetParam().states == Home::none && GetParam().kernels) {
      // The device updates them where they are.
    } else if (GetParam().states == Home::none) {
      // Master and moments move both ways, the gradient moves out, new weights of an fp32 master
      // move in.
      d2h += count * (12 + 2);
      h2d += count * (GetParam().master == config::MasterFormat::split ? 12 : 14);
    } else if (GetParam().weights == Home::none) {
      h2d += count * 2;
    }
  }
  EXPECT_EQ(on_gpu.h2d_of_a_step(), h2d);
  EXPECT_EQ(on_gpu.d2h_of_a_step(), d2h);
  if (GetParam().states != Home::none) return;
  EXPECT_EQ(on_gpu.plan().traffic.h2d_bytes, h2d);  // nothing else moves
  EXPECT_EQ(on_gpu.plan().traffic.d2h_bytes, d2h);
}

INSTANTIATE_TEST_SUITE_P(
    Homes, DeviceStatesTest,
    testing::Values(
        Case{"split_on_device", Home::none, Home::none, config::MasterFormat::split},
        Case{"fp32_on_device", Home::none, Home::none, config::MasterFormat::fp32},
        Case{"split_without_kernels", Home::none, Home::none, config::MasterFormat::split, false},
        Case{"fp32_without_kernels", Home::none, Home::none, config::MasterFormat::fp32, false},
        Case{"states_in_host", Home::cpu, Home::none, config::MasterFormat::split},
        Case{"all_in_host", Home::cpu, Home::cpu, config::MasterFormat::fp32}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sluice::train
