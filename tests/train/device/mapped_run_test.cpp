// Steps of a model on a stand-in for a GPU whose memory is mapped in pages, of exactly the planned
// number.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "device_run.hpp"
#include "host_pages.hpp"
#include "memory/mapped_source.hpp"

namespace sluice::train {
namespace {

using config::Activations;
using Case = test::RunCase;
using test::Home;

constexpr std::uint64_t kPage = 16U << 10U;  // a GPU's are larger, and so are its models' blocks

class MappedRun : public test::DeviceRun {
 protected:
  static RunDevice device_of(std::uint64_t memory_bytes) {
    auto pages = std::make_unique<sluice::test::HostPages>(kPage, memory_bytes / kPage);
    return test::make_stand_in_gpu(std::make_shared<test::StandInGpu>(
        memory_bytes, std::make_unique<offload::MappedSource>(std::move(pages), memory_bytes,
                                                              offload::Tier::device)));
  }
  plan::Plan mapped_plan(const Case& each) const {
    const config::TrainConfig config = config_of(each);
    plan::MachineFacts machine = plan::probe_machine(config);
    machine.device.host_addressable = false;
    machine.device.gpu = plan::GpuFacts{0, "stand-in", 1U << 30U, 1U << 30U, kPage};
    machine.device.workspaces = measure_workspaces(config, model_of(each), device_of(1U << 28U));
    return plan_on(each, machine);
  }
  // The losses of three steps. `taken_bytes` of the device's memory are taken before the second
  // one.
  std::vector<double> losses_of(const plan::Plan& plan, RunDevice device,
                                std::uint64_t taken_bytes = 0) {
    RunResources resources(plan, {SwapMode::create}, nullptr, std::move(device));
    initialise_states(resources, 5, std::nullopt);
    StepRunner runner(resources, 5);
    Progress progress;
    offload::Buffer taken;
    std::vector<double> losses;
    for (int step = 1; step <= 3; ++step) {
      if (step == 2) taken = resources.device->memory().allocate(taken_bytes, "gaps");
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward =
          runner.forward_backward(data(), step, progress.loss_scaler.scale(), update, [] {});
      EXPECT_TRUE(runner.end_step(backward, update, progress).updated);
      losses.push_back(backward.loss);
    }
    runner.finish_updates();
    dropped_ = runner.dropped_activations();
    peak_bytes_ = resources.device->memory().usage().peak_live_bytes;
    EXPECT_LE(peak_bytes_, plan.planned.tiers.device);
    return losses;
  }

  std::uint64_t dropped_ = 0;
  std::uint64_t peak_bytes_ = 0;
};

TEST_P(MappedRun, FitsThePlannedPagesWithTheBitsOfAnArena) {
  const std::vector<double> expected = [&] {
    const plan::Plan arena = plan_of(GetParam(), true);
    return losses_of(arena, test::make_stand_in_gpu(arena.planned.tiers.device));
  }();
  const plan::Plan plan = mapped_plan(GetParam());
  EXPECT_EQ(losses_of(plan, device_of(plan.planned.tiers.device)), expected);
  EXPECT_EQ(dropped_, 0U) << "nothing was short";
}

INSTANTIATE_TEST_SUITE_P(
    Placements, MappedRun,
    testing::Values(
        Case{.name = "host"}, Case{.name = "resident", .states = Home::none, .weights = Home::none},
        Case{.name = "passes", .weights = Home::none, .per_pass = 1},
        Case{.name = "larger_last_pass", .weights = Home::none, .per_pass = 1, .last_pass = 2},
        Case{.name = "inputs_in_host", .activations = Activations::offload}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sluice::train
