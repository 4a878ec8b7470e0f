// Non-finite gradients, with updates that wait and with updates at once; the end of a failed
// update.

#include "step/gradients/gradient_flow.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/plan/make_plan.hpp"
#include "small_run.hpp"
#include "step/step_end.hpp"

namespace sluice::train {
namespace {

using ::testing::HasSubstr;

plan::Plan small_plan() {
  const config::TrainConfig config = test::small_config();
  config::ModelConfig model = test::small_model();
  model.n_layer = 5;  // more units than slots
  return plan::make_plan(config, model, plan::Placement::configured, plan::probe_machine(config));
}

class GradientFlowTest : public ::testing::Test, protected test::FlowRun {
 protected:
  GradientFlowTest() : FlowRun(small_plan()) {}
};

TEST_F(GradientFlowTest, UpdatesBeginAsGradientsArrive) {
  flow_.begin_step();
  flow_.update_immediately(kUpdate);
  for (std::size_t u = last() + 1; u-- > 0;) send(u);
  flow_.finish_moves();
  EXPECT_TRUE(flow_.updates_begun());
  EXPECT_TRUE(flow_.non_finite().empty());
  for (std::size_t u = 0; u <= last(); ++u) EXPECT_EQ(weight_of(u), 0.5F) << u;
  double elements = 0;
  for (const auto& layout : plan_.layouts) elements += static_cast<double>(layout.param_count);
  EXPECT_EQ(flow_.squared_norm(), elements);
}

TEST_F(GradientFlowTest, UpdatesThatWaitAreSkippedAndTheParameterIsNamed) {
  flow_.begin_step();
  send(last());
  send(2, "transformer.h.1.mlp.c_fc.weight");
  send(1);
  send(0);
  flow_.finish_moves();
  EXPECT_EQ(flow_.non_finite(), "transformer.h.1.mlp.c_fc.weight");
  EXPECT_FALSE(flow_.updates_begun());
  flow_.drop();
  for (std::size_t u = 0; u <= last(); ++u) EXPECT_EQ(weight_of(u), 1.0F) << u;
}

TEST_F(GradientFlowTest, TheFirstGradientThatIsNotFiniteSkipsTheStep) {
  flow_.begin_step();
  flow_.update_immediately(kUpdate);
  send(last(), "transformer.ln_f.bias");
  for (std::size_t u = last(); u-- > 0;) send(u);
  flow_.finish_moves();
  EXPECT_EQ(flow_.non_finite(), "transformer.ln_f.bias");
  EXPECT_FALSE(flow_.updates_begun());
  flow_.drop();
  for (std::size_t u = 0; u <= last(); ++u) EXPECT_EQ(weight_of(u), 1.0F) << u;
}

// More steps than there are slots, skipped and not: every slot comes back.
TEST_F(GradientFlowTest, SlotsOfGradientsComeBack) {
  ASSERT_GT(plan_.rings.gradient_slots, 0);
  for (int step = 1; step <= 12; ++step) {
    flow_.begin_step();
    UpdateSettings update = kUpdate;
    update.step.step = step;
    if (step % 3 != 0) flow_.update_immediately(update);
    for (std::size_t u = last() + 1; u-- > 0;)
      send(u, step % 4 == 0 && u == last() ? "transformer.ln_f.bias" : "");
    flow_.finish_moves();
    if (!flow_.updates_begun()) flow_.drop();
    for (std::size_t u = 0; u <= last(); ++u) weight_of(u);
  }
  std::vector<offload::TileLease> all;
  all.reserve(static_cast<std::size_t>(plan_.rings.gradient_slots));
  for (int i = 0; i < plan_.rings.gradient_slots; ++i)
    all.push_back(resources_.gradient_slots->acquire());
}

TEST_F(GradientFlowTest, ALaterOneStopsTheRunAndNamesTheParameter) {
  const std::string said = error_of_a_later_gradient();
  EXPECT_THAT(said, HasSubstr("transformer.h.1.ln_2.weight is not finite"));
  EXPECT_THAT(said, HasSubstr("set gradient_clipping"));
}

TEST_F(GradientFlowTest, AStepThatLacksGradientsLeavesTheLossScale) {
  config::TrainConfig config = plan_.config;
  config.fp16.enabled = true;
  config.fp16.loss_scale_window = 1;
  Progress progress;
  progress.loss_scaler = LossScaler(config.fp16);
  const double before = progress.loss_scaler.scale();
  flow_.begin_step();
  send(last());
  flow_.finish_moves();
  BackwardResult backward;
  backward.gradient_norm = 1;
  EXPECT_THROW(end_step(config, backward, kUpdate, flow_, progress), InvalidArgument);
  EXPECT_EQ(progress.loss_scaler.scale(), before);
  EXPECT_EQ(progress.step, 0);
}

// Copies to the device end when the test lets them. Thread-safe.
class HoldingGpu final : public test::StandInGpu {
 public:
  HoldingGpu() : StandInGpu(offload::kUnlimited) {}
  ~HoldingGpu() override { let_go(); }
  Ticket begin_copy_in(offload::DeviceSpan to, std::span<const std::byte> from,
                       const offload::ComputePoint& after) override {
    Ticket copy = StandInGpu::begin_copy_in(to, from, after);
    MutexLock lock(mutex_);
    if (!holds_) return copy;
    copy.finish();
    held_.emplace_back();
    changed_.notify_all();
    return held_.back().ticket();
  }
  void hold() {
    MutexLock lock(mutex_);
    holds_ = true;
  }
  void wait_for_one() {
    MutexLock lock(mutex_);
    while (held_.empty()) changed_.wait(mutex_);
  }
  void let_go() {
    MutexLock lock(mutex_);
    holds_ = false;
    for (TicketSource& copy : held_) copy.complete();
    held_.clear();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool holds_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<TicketSource> held_ SLUICE_GUARDED_BY(mutex_);
};

// States on the device and weights in host memory: weights are current before their states are
// back. The first tile of the unit fails, and a later one is on its way to the device.
TEST(FailedUpdate, HasEndedWhenItsErrorIsThrown) {
  config::TrainConfig config = test::small_config();
  config.zero.offload_optimizer.device = config::OffloadConfig::Device::none;
  config.sluice.master = config::MasterFormat::fp32;
  config.zero.sub_group_size = 1;
  config::ModelConfig model = test::small_model();
  model.n_embd = 256;
  plan::MachineFacts machine = plan::probe_machine(config);
  machine.device.host_addressable = false;
  const plan::Plan plan = plan::make_plan(config, model, plan::Placement::configured, machine);
  constexpr std::size_t kBlock = 1;
  ASSERT_EQ(plan.units[kBlock].states, offload::Tier::device);
  ASSERT_EQ(plan.units[kBlock].weights, offload::Tier::host);
  ASSERT_GT(plan.layouts[kBlock].flat_count, plan.rings.update.tile_elements);
  const auto gpu = std::make_shared<HoldingGpu>();
  RunResources resources(plan, {SwapMode::create}, nullptr, test::make_stand_in_gpu(gpu));
  GradientFlow flow(resources);
  resources.updater->begin_initialise(kBlock, test::ones).finish();
  flow.begin_step();
  // With an epsilon of 0, an element whose gradient has always been 0 becomes 0 / 0.
  flow.update_immediately({{cpu_adam::AdamConfig{.epsilon = 0}}, {.step = 1}});
  flow.begin_unit(kBlock);
  torch::Tensor gradients = tensor_over(resources.units[kBlock]->gradients(), DType::bf16);
  gradients.fill_(1.0);
  gradients[0] = 0.0;
  gpu->hold();
  flow.send_unit(kBlock);
  flow.finish_moves();
  gpu->wait_for_one();
  zero::GatherStall stall;
  std::future<void> ended = std::async(std::launch::async, [&] { flow.finish_updates(stall); });
  EXPECT_TRUE(ended.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout)
      << "did not wait for the later tile";
  gpu->let_go();
  EXPECT_THROW(ended.get(), Error);
  EXPECT_TRUE(resources.updater->has_failed());
}

}  // namespace
}  // namespace sluice::train
