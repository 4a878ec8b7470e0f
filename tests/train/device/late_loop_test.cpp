// A loop of the user's own on a device whose compute work and copies end late, over many schedules:
// no use of memory is unordered, and the course has the bits of a device that computes at once.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "late_gpu.hpp"
#include "schedules.hpp"
#include "sluice/plan/make_plan.hpp"
#include "stand_in_gpu.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "train/engine/engine_support.hpp"
#include "train/step/small_run.hpp"
#include "user_loop/loop.hpp"

namespace sluice::train {
namespace {

using sluice::test::Course;
using sluice::test::LoopSetup;
using sluice::test::Model;
using ::testing::IsEmpty;

constexpr int kSteps = 3;
constexpr double kDropout = 0.1;

// An Engine on a device of the test's.
class OwnLoop {
 public:
  OwnLoop(const LoopSetup& setup, RunDevice device, const EngineOptions& options = {})
      : setup_(setup),
        loop_(std::make_shared<Loop>(
            sluice::test::config_of(setup, swap_.path()), options,
            BroughtDevice{.facts =
                              [](const config::TrainConfig& config) {
                                plan::MachineFacts facts = plan::probe_machine(config);
                                facts.device.host_addressable = false;
                                return facts;
                              },
                          .make = [made = std::make_shared<RunDevice>(std::move(device))](
                                      const plan::Plan&) { return std::move(*made); }})) {
    model_.blocks[2]->up->weight.set_requires_grad(false);  // frozen
    add("embed", model_.embed);
    for (std::size_t i = 0; i < model_.blocks.size(); ++i)
      add("h." + std::to_string(i), model_.blocks[i]);
    add("head", model_.head);
    loop_->initialize();
    torch::manual_seed(99);
  }

  Course take_steps(int first, int count) {
    Course course;
    for (int i = first * setup_.accumulation; i < (first + count) * setup_.accumulation; ++i) {
      const sluice::test::Batch batch = sluice::test::batch(i);
      loop_->backward(loss(batch));
      const StepResult result = loop_->step();
      if ((i + 1) % setup_.accumulation != 0) continue;
      course.losses.push_back(result.loss);
      course.norms.push_back(result.gradient_norm);
      // Evaluates while the updates run.
      const torch::NoGradGuard no_grad;
      course.losses.push_back(loss(batch).item<double>());
    }
    for (const std::string& name : sluice::test::parameter_names())
      course.weights.push_back(sluice::test::bytes_of(loop_->parameter(name)));
    return course;
  }
  Loop& loop() { return *loop_; }

 private:
  template <typename Module>
  void add(const std::string& name, const Module& module) {
    OwnUnit unit;
    unit.name = name;
    unit.module = module.ptr();
    unit.forward = [held = module.ptr()](const Tensors& x) { return Tensors{held->forward(x[0])}; };
    units_.push_back(loop_->add_unit(std::move(unit)));
  }
  torch::Tensor call(std::size_t unit, const torch::Tensor& x) {
    return loop_->forward(units_[unit], {x})[0];
  }
  // The first block is called twice.
  torch::Tensor loss(const sluice::test::Batch& on) {
    torch::Tensor x = call(0, on.inputs);
    for (std::size_t i = 1; i + 1 < units_.size(); ++i) x = x + call(i, x);
    x = x + call(1, x);
    return sluice::test::cross_entropy(call(units_.size() - 1, x), on.targets);
  }

  const LoopSetup setup_;
  const sluice::test::TempDir swap_;
  Model model_{kDropout};
  std::shared_ptr<Loop> loop_;
  std::vector<std::size_t> units_;
};

constexpr std::uint64_t kMemoryBytes = 64U << 20U;

struct Case {
  const char* name;
  LoopSetup setup;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}
class LateLoop : public testing::TestWithParam<Case> {
 protected:
  LateLoop() { at::set_num_threads(1); }
};

Course run_late(const LoopSetup& setup, std::uint64_t seed, std::uint64_t* kept = nullptr) {
  const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
  OwnLoop loop(setup, gpu.run_device());
  Course course = loop.take_steps(0, kSteps);
  loop.loop().finish();
  EXPECT_THAT(gpu.violations(), IsEmpty());
  if (kept != nullptr) *kept = loop.loop().counters().speculative_updates_kept;
  return course;
}

Course run_at_once(const LoopSetup& setup) {
  OwnLoop loop(setup, test::make_stand_in_gpu(kMemoryBytes));
  Course course = loop.take_steps(0, kSteps);
  loop.loop().finish();
  return course;
}

TEST_P(LateLoop, HasTheBitsOfADeviceThatComputesAtOnce) {
  const LoopSetup& setup = GetParam().setup;
  const Course expected = run_at_once(setup);
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    sluice::test::expect_same(run_late(setup, seed), expected);
    if (HasFailure()) return;
  }
}

LoopSetup in(const char* states, const char* weights, const char* activations) {
  LoopSetup setup;
  setup.optimizer_device = states;
  setup.param_device = weights;
  setup.sluice_keys = std::string("\"activations\": \"") + activations + "\", ";
  return setup;
}
LoopSetup in_fp16() {
  LoopSetup setup = in("cpu", "cpu", "keep");
  setup.bf16 = false;
  setup.more_keys =
      "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 20, \"hysteresis\": 1}, ";
  return setup;
}
LoopSetup with_gpu_updates() {
  LoopSetup setup = in("cpu", "none", "keep");
  setup.sluice_keys += "\"gpu_updates\": true, ";
  return setup;
}
INSTANTIATE_TEST_SUITE_P(Placements, LateLoop,
                         testing::Values(Case{"host", in("cpu", "cpu", "recompute")},
                                         Case{"weights_on_device", in("cpu", "none", "keep")},
                                         Case{"gpu_updates", with_gpu_updates()},
                                         Case{"nvme", in("nvme", "nvme", "keep")},
                                         Case{"fp16", in_fp16()}),
                         [](const auto& each) { return each.param.name; });

// Updates of units that the host updates begin in the last backward of a step, where they have
// second states.
TEST_P(LateLoop, HasTheBitsOfUpdatesThatWait) {
  LoopSetup setup = GetParam().setup;
  setup.clipping = 0;
  if (!setup.bf16)  // so that not all steps are skipped
    setup.more_keys =
        "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 15, \"hysteresis\": 1}, ";
  const Course expected = run_at_once(setup);
  setup.sluice_keys += "\"speculative_bytes\": \"auto\", ";
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    std::uint64_t kept = 0;
    sluice::test::expect_same(run_late(setup, seed, &kept), expected);
    EXPECT_EQ(kept > 0, setup.optimizer_device == "cpu");
    if (HasFailure()) return;
  }
}

TEST_F(LateLoop, ContinuesFromACheckpoint) {
  const LoopSetup setup = in("cpu", "none", "recompute");
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const sluice::test::TempDir checkpoints;
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    OwnLoop loop(setup, gpu.run_device());
    loop.take_steps(0, 1);
    loop.loop().save_checkpoint(checkpoints.path());
    torch::manual_seed(3);
    const Course expected = loop.take_steps(1, 2);
    loop.loop().load_checkpoint(checkpoints.path());
    torch::manual_seed(3);
    sluice::test::expect_same(loop.take_steps(1, 2), expected);
    loop.loop().finish();
    EXPECT_THAT(gpu.violations(), IsEmpty());
    if (HasFailure()) return;
  }
}

// A gradient at home on the device is not finite, and a further backward of its unit adds to it
// when it is read to name the parameter.
TEST_F(LateLoop, NamesTheParameterWhileABackwardAddsToTheGradient) {
  config::TrainConfig config = test::small_config();
  config.zero.offload_optimizer.device = config::OffloadConfig::Device::none;
  config.zero.offload_param.device = config::OffloadConfig::Device::none;
  config.gradient_clipping = 1;
  plan::MachineFacts machine = plan::probe_machine(config);
  machine.device.host_addressable = false;
  const plan::Plan plan =
      plan::make_plan(config, test::small_model(), plan::Placement::configured, machine);
  constexpr std::size_t kBlock = 1;
  ASSERT_EQ(plan.units[kBlock].gradients, offload::Tier::device);
  const zero::ParamLayout& second = plan.layouts[kBlock].params[1];
  for (const std::uint64_t seed : test::schedules(5)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    RunResources resources(plan, {SwapMode::create}, nullptr, gpu.run_device());
    GradientFlow flow(resources);
    const auto gradients = [&] {
      return tensor_over(resources.units[kBlock]->gradients(), DType::bf16);
    };
    flow.begin_step();
    flow.begin({kBlock});
    gradients().narrow(0, static_cast<std::int64_t>(second.offset_count), 1).fill_(INFINITY);
    flow.send({kBlock}, 1);
    flow.begin({kBlock});
    gradients().add_(1.0);
    flow.finish_moves();
    EXPECT_EQ(flow.non_finite(), second.name);
    EXPECT_THAT(gpu.violations(), IsEmpty());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::train
