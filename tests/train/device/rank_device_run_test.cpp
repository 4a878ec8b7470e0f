// Steps of two ranks on devices that the host does not address, as GPUs are. Their memory goes
// between the ranks through host memory, so they have the bits of two ranks on the host.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "device_run.hpp"
#include "saved/rank_places.hpp"
#include "saved/saved_state.hpp"
#include "sluice/base/error.hpp"
#include "sluice/zero/device_ranks.hpp"
#include "sluice/zero/ranks.hpp"
#include "thread_ranks.hpp"

namespace sluice::train {
namespace {

using test::Home;

using Case = test::RunCase;

struct Result {
  std::vector<double> losses;
  std::vector<double> norms;
  double evaluation = 0;
};

class RankDeviceRun : public test::DeviceRun {
 protected:
  static constexpr int kRanks = 2;
  static constexpr int kSteps = 3;
  using Both = std::array<Result, kRanks>;

  config::TrainConfig config_of_rank(const Case& each, int rank) const {
    config::TrainConfig config = config_of(each);
    config.rank = rank;
    config.world_size = kRanks;
    config.zero.stage = each.stage;
    config.train_batch_size *= kRanks;
    return config;
  }

  plan::Plan plan_of_rank(const Case& each, int rank, const plan::DeviceFacts& device) const {
    const config::TrainConfig config =
        with_rank_folders(config_of_rank(each, rank), plan::Placement::configured);
    plan::MachineFacts machine = plan::probe_machine(config);
    machine.device = device;
    plan::Plan plan = plan::make_plan(config, model_of(each), plan::Placement::configured, machine);
    if (each.halves_in_weights) test::leave_halves_to_weights(plan);
    return plan;
  }
  plan::DeviceFacts facts_of(const Case& each, bool on_gpu) const {
    return machine_of(each, on_gpu).device;
  }

  static std::shared_ptr<offload::Device> make_device(bool on_gpu) {
    if (on_gpu) return std::make_shared<test::StandInGpu>(offload::kUnlimited);
    return offload::make_host_device({});
  }

  Result run_rank(const plan::Plan& plan, RankLinks links, bool on_gpu) const {
    // One budget in a process has the tensors, and these are two ranks.
    RunResources resources(plan, {SwapMode::create}, nullptr,
                           test::without_allocator(make_device(on_gpu)), std::move(links));
    EXPECT_EQ(resources.communicator->on_device(), on_gpu);
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    Progress progress;
    begin_progress(progress, *resources.communicator);
    Result result;
    for (int step = 1; step <= kSteps; ++step) {
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward =
          runner.forward_backward(data(), step, progress.loss_scaler.scale(), update, [] {});
      EXPECT_EQ(backward.non_finite, "");
      EXPECT_TRUE(runner.end_step(backward, update, progress).updated);
      result.losses.push_back(backward.loss);
      result.norms.push_back(backward.gradient_norm);
    }
    runner.finish_updates();
    result.evaluation = *runner.evaluate(data(), 4, [](auto, auto) { return true; });
    EXPECT_LE(resources.host_pool->usage().peak_live_bytes, plan.planned.tiers.host);
    return result;
  }

  static void on_ranks(const std::function<void(int rank, RankLinks links)>& body) {
    std::vector<zero::Ranks> ranks = sluice::test::make_thread_ranks(kRanks);
    std::vector<std::thread> threads;
    threads.reserve(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        zero::Ranks& own = ranks[static_cast<std::size_t>(rank)];
        body(rank, {.communicator = std::move(own.compute),
                    .gather_communicator = std::move(own.gather)});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Both run(const Case& each, bool on_gpu) const {
    Both results;
    const plan::DeviceFacts device = facts_of(each, on_gpu);
    on_ranks([&](int rank, RankLinks links) {
      results[static_cast<std::size_t>(rank)] =
          run_rank(plan_of_rank(each, rank, device), std::move(links), on_gpu);
    });
    return results;
  }
};

// Without clipping norms change no bit of the weights, and on both sides LibTorch's CPU kernels
// compute.
TEST_P(RankDeviceRun, HasTheBitsOfTwoRanksOnTheHost) {
  Case each = GetParam();
  const Both clipped = run(each, true);
  each.clipping = 0;
  const Both on_host = run(each, false);
  const Both on_gpu = run(each, true);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(on_gpu[rank].losses, on_host[0].losses);
    EXPECT_EQ(on_gpu[rank].evaluation, on_host[0].evaluation);
    EXPECT_EQ(clipped[rank].losses, clipped[0].losses);
    EXPECT_EQ(clipped[rank].norms, clipped[0].norms);
    for (std::size_t i = 0; i < kSteps; ++i)
      EXPECT_NEAR(on_gpu[rank].norms[i] / on_host[0].norms[i], 1, 1e-5);
    EXPECT_NEAR(clipped[rank].norms[0] / on_host[0].norms[0], 1, 1e-5);
  }
  EXPECT_LT(on_gpu[0].losses.back(), on_gpu[0].losses.front());
}

INSTANTIATE_TEST_SUITE_P(
    Stages, RankDeviceRun,
    testing::Values(
        Case{.name = "stage_3"}, Case{.name = "stage_3_weights_on_device", .weights = Home::none},
        Case{.name = "stage_3_nvme", .states = Home::nvme, .weights = Home::nvme},
        Case{.name = "stage_2", .weights = Home::none, .stage = 2},
        Case{
            .name = "stage_2_halves", .weights = Home::none, .stage = 2, .halves_in_weights = true},
        Case{.name = "stage_3_halves", .weights = Home::none, .halves_in_weights = true},
        Case{.name = "stage_1_resident", .states = Home::none, .weights = Home::none, .stage = 1},
        Case{.name = "stage_2_passes", .weights = Home::none, .per_pass = 1, .stage = 2},
        Case{.name = "stage_3_half_of_states_on_gpu", .ratio = 0.4},
        Case{.name = "stage_2_states_on_gpu", .weights = Home::none, .stage = 2, .ratio = 0},
        Case{.name = "stage_3_fp32_sums", .fp32_sums = true}),
    [](const auto& each) { return each.param.name; });

// Host memory through which device memory goes is planned, unless NCCL takes the device's.
TEST_F(RankDeviceRun, ThePlanHasTheStagingOfRanks) {
  const auto staged = [](const plan::Plan& plan) {
    std::uint64_t bytes = 0;
    for (const plan::PlanRow& row : plan.planned.rows)
      if (row.component == "staging of ranks") bytes = row.bytes.host;
    return bytes;
  };
  const Case each{.name = "stage_3"};
  plan::DeviceFacts device = facts_of(each, true);
  EXPECT_EQ(staged(plan_of_rank(each, 0, device)), 2 * zero::StagingOptions::kStagingBytes);
  device.has_nccl = true;
  EXPECT_EQ(staged(plan_of_rank(each, 0, device)), 0U);
  EXPECT_EQ(staged(plan_of_rank(each, 0, facts_of(each, false))), 0U);
}

}  // namespace
}  // namespace sluice::train
