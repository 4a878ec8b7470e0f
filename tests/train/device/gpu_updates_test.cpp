// Updates that the device computes ("gpu_updates"), on a stand-in for a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "device_run.hpp"
#include "saved/checkpoint.hpp"
#include "sluice/base/error.hpp"

namespace sluice::train {
namespace {

using Case = test::RunCase;
using test::Home;
using testing::HasSubstr;

// A stand-in whose works and copies fail when a test says so.
class FailingGpu final : public offload::Device {
 public:
  enum class Failing { nothing, copy_in, work, copy_out };

  explicit FailingGpu(std::uint64_t memory_bytes) : gpu_(memory_bytes) {}
  // The next `count` of that kind run, and then one fails.
  void fail(Failing what, int count) {
    left_ = count;
    failing_ = what;
  }
  std::string_view name() const override { return "failing"; }
  offload::MemoryPool& memory() override { return gpu_.memory(); }
  bool host_addressable() const override { return false; }
  std::unique_ptr<offload::MemorySource> make_pinned_source() override {
    return gpu_.make_pinned_source();
  }
  offload::ComputePoint mark_compute() override { return gpu_.mark_compute(); }
  offload::ComputePoint mark_time() override { return gpu_.mark_time(); }
  std::optional<std::chrono::steady_clock::time_point> time_of(
      const offload::ComputePoint& timed) override {
    return gpu_.time_of(timed);
  }
  Ticket begin_copy_in(offload::DeviceSpan to, std::span<const std::byte> from,
                       const offload::ComputePoint& after) override {
    check(Failing::copy_in);
    return gpu_.begin_copy_in(to, from, after);
  }
  Ticket begin_copy_out(std::span<std::byte> to, offload::DeviceSpan from,
                        const offload::ComputePoint& after) override {
    check(Failing::copy_out);
    return gpu_.begin_copy_out(to, from, after);
  }
  Ticket begin_copy_within(offload::DeviceSpan to, offload::DeviceSpan from,
                           const offload::ComputePoint& after) override {
    return gpu_.begin_copy_within(to, from, after);
  }
  Ticket begin_work(offload::DeviceWork work, const offload::ComputePoint& after) override {
    if (failing_ == Failing::work)
      work.issue = [](void*) { throw Error("the kernel cannot be launched"); };
    return gpu_.begin_work(std::move(work), after);
  }
  offload::CopyCounters counters() const override { return gpu_.counters(); }

 private:
  void check(Failing what) {
    if (failing_ == what && left_-- <= 0) throw Error("the copy cannot be queued");
  }
  test::StandInGpu gpu_;
  std::atomic<Failing> failing_ = Failing::nothing;
  std::atomic<int> left_ = 0;
};

class GpuUpdates : public test::DeviceRun {
 protected:
  static constexpr Case kCase{.weights = Home::none, .tied = false, .gpu_updates = true};

  // The message of the first step's updates.
  std::string message_of_step(
      const plan::Plan& plan, std::shared_ptr<offload::Device> device,
      const std::function<void()>& before_updates = [] {}) {
    RunResources resources(plan, {SwapMode::create}, nullptr,
                           test::make_stand_in_gpu(std::move(device)));
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    Progress progress;
    const UpdateSettings update = next_update(resources, progress, false);
    try {
      const BackwardResult backward = runner.forward_backward(data(), 1, 1, update, [] {});
      before_updates();
      runner.end_step(backward, update, progress);
      runner.finish_updates();
    } catch (const Error& error) {
      EXPECT_THROW(resources.updater->check_updates(), Error) << "a next step and a commit refuse";
      return error.what();
    }
    return "";
  }
};

// Tokens that no sequence has get no gradient, so with an epsilon of 0 they become 0 / 0.
TEST_F(GpuUpdates, NameTheParameterThatBecomesNonFinite) {
  plan::Plan plan = plan_of(kCase, true);
  ASSERT_GT(plan.rings.update.device_tiles, 0);
  for (models::ParamGroup& group : plan.groups.groups) group.optimizer.eps = 0;
  const auto message = [&] {
    return message_of_step(plan, std::make_shared<test::StandInGpu>(plan.planned.tiers.device));
  };
  const std::string on_gpu = message();
  EXPECT_THAT(on_gpu, HasSubstr("transformer.wte.weight (element "));
  EXPECT_THAT(on_gpu, HasSubstr("The likely cause is \"eps\": 0"));
  plan.rings.update.device_tiles = 0;
  EXPECT_EQ(message(), on_gpu);
  // Where a half of the states is at home on the GPU.
  for (const bool by_gpu : {false, true}) {
    plan = plan_of(
        {.weights = Home::none, .tied = false, .gpu_updates = by_gpu, .halves_in_weights = true},
        true);
    for (models::ParamGroup& group : plan.groups.groups) group.optimizer.eps = 0;
    EXPECT_EQ(message(), on_gpu);
  }
  // Where the states are at home on the GPU.
  plan = plan_of({.tied = false, .ratio = 0}, true);
  ASSERT_TRUE(std::ranges::all_of(plan.units, plan::device_has_all_of));
  for (models::ParamGroup& group : plan.groups.groups) group.optimizer.eps = 0;
  EXPECT_EQ(message(), on_gpu);
}

// 12 bytes of an element of the GPU in each direction, and the weight of an element of the cores.
// The upper half goes to host memory only where it has a home there, or is needed in a tile.
TEST_P(GpuUpdates, MoveEachByteOnce) {
  const plan::Plan plan = plan_of(GetParam(), true);
  const std::uint64_t half = GetParam().halves_in_weights ? 2 : 0;
  RunResources resources(plan, {SwapMode::create}, nullptr,
                         test::make_stand_in_gpu(plan.planned.tiers.device));
  initialise_states(resources, kSeed, std::nullopt);
  const UpdateCounters before = resources.updater->counters();
  StepRunner runner(resources, kSeed);
  Progress progress;
  const UpdateSettings update = next_update(resources, progress, false);
  runner.end_step(runner.forward_backward(data(), 1, 1, update, [] {}), update, progress);
  runner.finish_updates();
  const UpdateCounters after = resources.updater->counters();
  const std::uint64_t of_gpu = after.device_elements;
  EXPECT_EQ(after.h2d_bytes - before.h2d_bytes, 12 * of_gpu + 2 * (after.elements - of_gpu));
  EXPECT_EQ(after.d2h_bytes - before.d2h_bytes,
            (12 - half) * of_gpu + half * (after.elements - of_gpu));
}
INSTANTIATE_TEST_SUITE_P(Halves, GpuUpdates,
                         testing::Values(Case{.name = "in_host_memory",
                                              .weights = Home::none,
                                              .tied = false,
                                              .gpu_updates = true},
                                         Case{.name = "in_weights",
                                              .weights = Home::none,
                                              .tied = false,
                                              .gpu_updates = true,
                                              .halves_in_weights = true}),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_F(GpuUpdates, TellOfATransferThatFails) {
  using Failing = FailingGpu::Failing;
  plan::Plan plan = plan_of(kCase, true);
  plan.rings.update.tile_elements = 1024;
  for (const Failing what : {Failing::copy_in, Failing::work, Failing::copy_out}) {
    for (const int count : {0, 1, 2, 3, 20}) {
      std::string message;
      // On a busy machine the cores may have taken all tiles before the device's thread wakes.
      for (int attempt = 0; attempt < 20 && message.empty(); ++attempt) {
        const auto gpu = std::make_shared<FailingGpu>(offload::kUnlimited);
        message = message_of_step(plan, gpu, [&] { gpu->fail(what, count); });
      }
      EXPECT_THAT(message,
                  testing::AnyOf(HasSubstr("cannot be queued"), HasSubstr("cannot be launched")));
    }
  }
}

// The half of a tile does not come, or does not go back.
TEST_F(GpuUpdates, TellOfAHalfThatFails) {
  using Failing = FailingGpu::Failing;
  plan::Plan plan =
      plan_of({.weights = Home::none, .tied = false, .halves_in_weights = true}, true);
  plan.rings.update.tile_elements = 1024;
  for (const Failing what : {Failing::copy_in, Failing::copy_out}) {
    for (const int count : {0, 1, 20}) {
      const auto gpu = std::make_shared<FailingGpu>(offload::kUnlimited);
      EXPECT_THAT(message_of_step(plan, gpu, [&] { gpu->fail(what, count); }),
                  HasSubstr("cannot be queued"));
    }
  }
}

// The units of the cores are updated; the error of the others is told.
TEST_F(GpuUpdates, TellOfAWholeUnitThatFails) {
  const plan::Plan plan = plan_of({.ratio = 0.4}, true);
  ASSERT_TRUE(plan::device_has_all_of(plan.units.front()));
  ASSERT_FALSE(plan::device_has_all_of(plan.units.back()));
  const auto gpu = std::make_shared<FailingGpu>(offload::kUnlimited);
  EXPECT_THAT(message_of_step(plan, gpu, [&] { gpu->fail(FailingGpu::Failing::work, 0); }),
              HasSubstr("cannot be launched"));
}

}  // namespace
}  // namespace sluice::train
