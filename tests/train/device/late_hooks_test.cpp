// Hooks on a model that a device computes whose compute work and copies end late, over many
// schedules. LibTorch's tensors have LibTorch's own memory, as in Python.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hooked_course.hpp"
#include "late_gpu.hpp"
#include "schedules.hpp"
#include "stand_in_gpu.hpp"

namespace sluice::train {
namespace {

using sluice::test::Course;
using sluice::test::LoopSetup;
using test::kMemoryBytes;
using test::OnDevice;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kSteps = 3;
// Too little host memory for the upper halves of a split master.
constexpr const char* kShortOfHalves = "276KiB";

Course run_on(const LoopSetup& setup, RunDevice device) {
  OnDevice run(setup, std::move(device));
  Course course = run.model.take_steps(0, kSteps);
  run.loop.finish();
  return course;
}

struct Case {
  const char* name;
  const char* states;
  const char* weights;
  const char* host_bytes = "64MiB";
  double ratio = 1;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}
LoopSetup setup_of(const Case& each) {
  LoopSetup setup;
  setup.optimizer_device = each.states;
  setup.param_device = each.weights;
  setup.host_bytes = each.host_bytes;
  setup.ratio = each.ratio;
  return setup;
}
class LateHooks : public testing::TestWithParam<Case> {
 protected:
  LateHooks() { at::set_num_threads(1); }
};

TEST_P(LateHooks, HaveTheBitsOfADeviceThatComputesAtOnce) {
  const LoopSetup setup = setup_of(GetParam());
  const Course expected = run_on(setup, test::make_stand_in_gpu(kMemoryBytes));
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    sluice::test::expect_same(run_on(setup, gpu.run_device()), expected);
    EXPECT_THAT(gpu.violations(), IsEmpty());
    if (HasFailure()) return;
  }
}

// Updates begin while the device still computes backward, and write weights that it may read.
TEST_P(LateHooks, UpdateInBackwardWithTheBitsOfStep) {
  for (const int accumulation : {1, 2}) {
    LoopSetup setup = setup_of(GetParam());
    setup.clipping = 0;
    setup.accumulation = accumulation;
    const Course expected = run_on(setup, test::make_stand_in_gpu(kMemoryBytes));
    setup.sluice_keys += "\"optimizer_in_backward\": true, ";
    for (const std::uint64_t seed : test::schedules(10)) {
      SCOPED_TRACE("schedule " + std::to_string(seed));
      const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
      sluice::test::expect_same(run_on(setup, gpu.run_device()), expected);
      EXPECT_THAT(gpu.violations(), IsEmpty());
      if (HasFailure()) return;
    }
  }
}

// Weights at home on the device are written while an evaluation that reads them may still compute.
TEST_P(LateHooks, AParameterIsSetAfterTheWorkThatReadsIt) {
  const LoopSetup setup = setup_of(GetParam());
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    OnDevice run(setup, gpu.run_device());
    run.model.take_steps(0, 1);
    for (const char* name : {"head.norm.weight", "h.2.down.weight", "h.2.up.weight"}) {
      const torch::Tensor before = run.loop.parameter(name);
      run.model.evaluate(5);
      run.loop.set_parameters({{name, before * 2}});
      EXPECT_TRUE(torch::equal(run.loop.parameter(name), before * 2)) << name;
    }
    run.loop.finish();
    EXPECT_THAT(gpu.violations(), IsEmpty());
    if (HasFailure()) return;
  }
}

// Masters and moments are read on the updater's thread, from NVMe too.
TEST_P(LateHooks, AStateIsThatOfTheLastUpdate) {
  const LoopSetup setup = setup_of(GetParam());
  const auto states_on = [&](RunDevice device) {
    OnDevice run(setup, std::move(device));
    run.model.take_steps(0, 2);
    std::vector<torch::Tensor> states;
    for (const char* name : {"head.norm.weight", "h.2.down.weight"})
      for (const std::optional<std::size_t> moment : {std::optional<std::size_t>(), {0}, {1}})
        states.push_back(run.loop.state(name, moment).clone());  // as it is now
    run.loop.finish();
    return states;
  };
  const std::vector<torch::Tensor> expected = states_on(test::make_stand_in_gpu(kMemoryBytes));
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    const std::vector<torch::Tensor> states = states_on(gpu.run_device());
    for (std::size_t i = 0; i < states.size(); ++i) {
      EXPECT_TRUE(torch::equal(states[i], expected[i])) << i;
      EXPECT_GT(states[i].abs().max().item<float>(), 0) << i;
    }
    EXPECT_THAT(gpu.violations(), IsEmpty());
    if (HasFailure()) return;
  }
}

// Values from outside reach both halves of a master whose upper half is in the weights only: the
// course is that of a run with both halves in host memory.
TEST(HalvesInWeights, FollowWhatALoopSets) {
  at::set_num_threads(1);
  LoopSetup setup;
  setup.param_device = "none";
  const auto run_with = [&](const char* host_bytes, bool halves) {
    setup.host_bytes = host_bytes;
    OnDevice run(setup, test::make_stand_in_gpu(kMemoryBytes));
    Course course = run.model.take_steps(0, 1);
    const auto& units = run.loop.plan().units;
    EXPECT_EQ(std::any_of(units.begin(), units.end(),
                          [&](const plan::UnitPlacement& unit) {
                            return half_copied_to_tile(unit, run.loop.plan().state_format);
                          }),
              halves);
    const char* const name = "h.2.down.weight";
    const torch::Tensor master = run.loop.state(name, {});
    run.loop.set_parameters({{name, master * 1.0001 + 1e-4}});  // bits of both halves
    EXPECT_TRUE(torch::equal(run.loop.state(name, {}), master * 1.0001 + 1e-4));
    EXPECT_TRUE(
        torch::equal(run.loop.parameter(name), (master * 1.0001 + 1e-4).to(torch::kBFloat16)));
    run.loop.set_states({{"head.norm.weight", run.loop.state("head.norm.weight", 0) * 3}}, 0);
    course = run.model.take_steps(1, kSteps);
    for (const char* each : {"h.0.down.weight", "h.2.down.weight", "head.norm.weight"})
      for (const std::optional<std::size_t> moment : {std::optional<std::size_t>(), {0}, {1}})
        course.weights.push_back(sluice::test::bytes_of(run.loop.state(each, moment)));
    run.loop.finish();
    return course;
  };
  sluice::test::expect_same(run_with(kShortOfHalves, true), run_with("64MiB", false));
}

// A unit is gathered for the units inside it too, whose backwards add nothing to its gradient.
TEST(OwnLoopUnits, AUnitAroundOthersHasABackwardOfItsOwnOnly) {
  const sluice::test::TempDir swap;
  LoopCore loop(sluice::test::config_of(LoopSetup(), swap.path()), {},
                OnDevice::brought(test::make_stand_in_gpu(kMemoryBytes)));
  const auto unit_of = [](const char* name, const std::vector<std::size_t>& inside) {
    OwnUnit unit;
    unit.name = name;
    unit.named.push_back(
        {std::string(name) + ".weight", torch::ones({4}, torch::requires_grad(true))});
    unit.inside = inside;
    return unit;
  };
  const std::size_t around = loop.add_unit(unit_of("model", {}));
  loop.add_unit(unit_of("head", {around}));
  loop.preview();
  EXPECT_THAT(loop.plan().own.calls, ElementsAre(ElementsAre(0), ElementsAre(0, 1)));
  EXPECT_THAT(loop.plan().own.backwards, ElementsAre(1, 1));
}

// LibTorch's work on a GPU, whose stream a thread may leave.
class StandInStream final : public GpuCompute {
 public:
  explicit StandInStream(std::shared_ptr<bool> current) : current_(std::move(current)) {}
  void* stream() const override { return nullptr; }
  bool is_current() const override { return *current_; }
  void use_memory(std::shared_ptr<const GpuMemory>) override {}
  void run_on_stream(const std::function<void()>& work) override { work(); }
  void synchronize() override {}
  bool has_kernels() const override { return false; }
  void issue_squared_norm(const void*, std::uint64_t, DType, double*) override {}
  void issue_step(const cpu_adam::StepArguments&, std::uint32_t*, void*) override {}

 private:
  const std::shared_ptr<bool> current_;
};

// Copies would not wait for what that stream computes.
TEST(OwnLoopStream, ReadsAndEndsAStepOnTheStreamThatComputes) {
  at::set_num_threads(1);
  LoopSetup setup;
  setup.accumulation = 1;
  RunDevice device = test::make_stand_in_gpu(kMemoryBytes);
  const auto current = std::make_shared<bool>(true);
  device.gpu = std::make_unique<StandInStream>(current);
  OnDevice run(setup, std::move(device));
  run.model.take_micro_batch(0, torch::kCPU);
  const char* const name = "h.2.down.weight";
  const torch::Tensor gradient = run.loop.gradient(name);
  *current = false;
  const auto refused = ::testing::ThrowsMessage<InvalidArgument>(
      ::testing::HasSubstr("computes on another CUDA stream"));
  EXPECT_THAT([&] { run.loop.gradient(name); }, refused);
  EXPECT_THAT([&] { run.loop.set_gradient(name, gradient); }, refused);
  EXPECT_THAT([&] { run.loop.parameter(name); }, refused);
  EXPECT_THAT([&] { run.loop.add_loss(torch::ones({})); }, refused);
  EXPECT_THAT([&] { run.loop.end_step({}); }, refused);
  EXPECT_EQ(run.loop.state(name, std::nullopt).sizes(), gradient.sizes()) << "not LibTorch's";
  *current = true;
  EXPECT_TRUE(torch::equal(run.loop.gradient(name), gradient));
  EXPECT_EQ(run.loop.end_step({}).step, 1U) << "the step that was refused goes on";
  run.loop.finish();
}

// Steps of so many micro-batches each, where `accumulation` are configured.
struct Added {
  Course course;
  std::vector<std::uint64_t> d2h_bytes;  // by step
  bool has_sums = false;
};
Added take_steps_of(const std::vector<int>& micro_batches, RunDevice device,
                    const char* device_bytes, int accumulation = 3,
                    std::optional<std::size_t> called_twice = {}) {
  LoopSetup setup;
  setup.accumulation = accumulation;
  setup.device_bytes = device_bytes;
  OnDevice run(setup, std::move(device));
  if (called_twice) run.model.call_twice(*called_twice);
  Added added;
  for (const plan::UnitPlacement& unit : run.loop.plan().units)
    added.has_sums = added.has_sums || unit.sums_on_device;
  int batch = 0;
  std::uint64_t before = 0;
  for (const int count : micro_batches) {
    for (int i = 0; i < count; ++i) run.model.take_micro_batch(batch++, torch::kCPU);
    const StepResult result = run.loop.end_step({});
    added.course.losses.push_back(result.loss);
    added.course.norms.push_back(result.gradient_norm);
    const std::uint64_t after = run.loop.counters().d2h_bytes;
    added.d2h_bytes.push_back(after - std::exchange(before, after));
  }
  for (const std::string& name : sluice::test::parameter_names())
    added.course.weights.push_back(sluice::test::bytes_of(run.loop.parameter(name)));
  run.loop.finish();
  return added;
}

// A step expects as many micro-batches as the one before had. More or fewer cost copies, and no
// bit.
TEST(LateSums, GoHomeWithTheLastMicroBatch) {
  at::set_num_threads(1);
  const std::vector<int> micro_batches = {3, 3, 1, 3, 3, 4};
  const Added expected =
      take_steps_of(micro_batches, test::make_stand_in_gpu(kMemoryBytes), "1180KiB");
  ASSERT_FALSE(expected.has_sums) << "no room";
  for (const std::uint64_t seed : test::schedules(5)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    const Added added = take_steps_of(micro_batches, gpu.run_device(), "64MiB");
    EXPECT_TRUE(added.has_sums);
    sluice::test::expect_same(added.course, expected.course);
    EXPECT_THAT(gpu.violations(), IsEmpty());
    // Each send of a gradient sends its norm too. Without sums each micro-batch sends, and a tied
    // gradient twice.
    const std::uint64_t once = added.d2h_bytes[0];
    EXPECT_GT(expected.d2h_bytes[0], 3 * once);
    EXPECT_THAT(added.d2h_bytes, ElementsAre(once, once, once, 3 * once, once, 2 * once));
    if (HasFailure()) return;
  }
}

// A plan does not know of the second call of a unit. The first step shows it.
TEST(LateSums, GoHomeWithTheLastCallOfAMicroBatch) {
  at::set_num_threads(1);
  const std::vector<int> micro_batches = {1, 1, 1};
  constexpr std::size_t kBlock = 2;
  const auto run_on_bytes = [&](RunDevice device, const char* device_bytes) {
    return take_steps_of(micro_batches, std::move(device), device_bytes, 1, kBlock);
  };
  const Added expected = run_on_bytes(test::make_stand_in_gpu(kMemoryBytes), "1180KiB");
  ASSERT_FALSE(expected.has_sums) << "no room";
  for (const std::uint64_t seed : test::schedules(5)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    const Added added = run_on_bytes(gpu.run_device(), "64MiB");
    EXPECT_TRUE(added.has_sums);
    sluice::test::expect_same(added.course, expected.course);
    EXPECT_THAT(gpu.violations(), IsEmpty());
    EXPECT_GT(added.d2h_bytes[0], added.d2h_bytes[1]);
    EXPECT_EQ(added.d2h_bytes[1], added.d2h_bytes[2]);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, LateHooks,
                         testing::Values(Case{"host", "cpu", "cpu"},
                                         Case{"all_on_device", "none", "none"},
                                         Case{"states_on_gpu", "cpu", "cpu", "64MiB", 0},
                                         Case{"half_of_states_on_gpu", "cpu", "none", "64MiB", 0.5},
                                         Case{"weights_on_device", "cpu", "none"},
                                         Case{"halves_in_weights", "cpu", "none", kShortOfHalves},
                                         Case{"short_of_host_memory", "cpu", "cpu", "260KiB"},
                                         Case{"nvme", "nvme", "nvme"}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sluice::train
