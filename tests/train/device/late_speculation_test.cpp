// Updates that begin in the last backward of a step of a loop of the user's own. Whatever happens
// between that backward and the end of the step, the bits are those of a loop whose updates wait
// for the end.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hooked_course.hpp"
#include "late_gpu.hpp"
#include "schedules.hpp"
#include "stand_in_gpu.hpp"
#include "temp_dir.hpp"

namespace sluice::train {
namespace {

using sluice::test::Course;
using sluice::test::LoopSetup;
using test::kMemoryBytes;
using test::OnDevice;
using ::testing::IsEmpty;

constexpr int kSteps = 4;
constexpr int kAccumulation = 2;
constexpr std::uint64_t kUnits = 4;  // three blocks and a head; the embedding's gradient comes last
constexpr std::size_t kBlock = 2;    // h.1
const char* const kParameter = "h.1.down.bias";  // of that block

using Groups = std::vector<GroupValues>;
Groups rate_of(double rate) {
  return {{.learning_rate = rate, .weight_decay = 0.1}};
}

// The backwards of a step.
void compute(OnDevice& run, int step) {
  for (int i = 0; i < kAccumulation; ++i)
    run.model.take_micro_batch(step * kAccumulation + i, torch::kCPU);
}

// Updates of units over all steps.
struct Counts {
  std::uint64_t kept = 0;
  std::uint64_t dropped = 0;
};

// A step, with what may happen in it. The loop takes two of these between two ordinary ones.
struct Case {
  const char* name;
  std::function<StepResult(OnDevice&, int)> take;
  Counts expected;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}

// A step in which `happens` comes between the last backward and the end.
template <typename Happens>
std::function<StepResult(OnDevice&, int)> with(const Happens& happens) {
  return [happens](OnDevice& run, int step) {
    compute(run, step);
    happens(run, step);
    return run.loop.end_step({});
  };
}

std::vector<Case> cases() {
  constexpr std::uint64_t kAll = kSteps * kUnits;
  const auto nothing = [](OnDevice&, int) {};
  const auto one_more = [](OnDevice& run, int step) {
    run.model.take_micro_batch(step, torch::kCPU);
  };
  const auto set_gradient = [](OnDevice& run, int) {
    run.loop.set_gradient(kParameter, 2 * run.loop.gradient(kParameter));
  };
  const auto read_gradient = [](OnDevice& run, int) { run.loop.gradient(kParameter); };
  const auto not_a_number = [](OnDevice& run, int) {
    run.loop.set_gradient(kParameter, torch::full_like(run.loop.gradient(kParameter),
                                                       std::numeric_limits<float>::quiet_NaN()));
  };
  const auto begin_anew = [](OnDevice& run, int step) {
    run.loop.forget_gradients();
    compute(run, step);
  };
  // As an exception in the backward of a block does.
  const auto fail = [](OnDevice& run, int step) {
    run.loop.begin_backward();
    run.loop.enter(kBlock, Pass::training);
    run.loop.begin_gradients(kBlock);
    run.loop.forget_gradients();
    compute(run, step);
  };
  const auto set_state = [](std::optional<std::size_t> moment) {
    return [moment](OnDevice& run, int) {
      run.loop.set_states({{kParameter, 0.5 * run.loop.state(kParameter, moment)}}, moment);
    };
  };
  const auto read_state = [](OnDevice& run, int) { run.loop.state(kParameter, 1); };
  const auto save_and_load = [](OnDevice& run, int step) {
    const sluice::test::TempDir folder;
    run.loop.save_checkpoint(folder.path());
    run.loop.load_checkpoint(run.loop.read_checkpoint(folder.path()));
    compute(run, step);
  };
  const auto save = [](OnDevice& run, int) {
    const sluice::test::TempDir folder;
    run.loop.save_checkpoint(folder.path());
  };
  const auto evaluate = [](OnDevice& run, int step) { run.model.evaluate(step); };
  const auto end_with_other_values = [](OnDevice& run, int step) {
    compute(run, step);
    return run.loop.end_step(rate_of(0.5));
  };
  const auto expect_values = [](OnDevice& run, int step) {
    run.model.expect(rate_of(0.5));
    compute(run, step);
    run.model.expect({});
    return run.loop.end_step(rate_of(0.5));
  };
  // The values change before a backward that reaches none of the units.
  const auto expect_others = [](OnDevice& run, int step) {
    compute(run, step);
    run.loop.begin_backward(rate_of(0.5));
    run.loop.end_micro_batch();
    return run.loop.end_step(rate_of(0.5));
  };
  const auto refuse_values = [](OnDevice& run, int step) {
    run.model.expect(rate_of(-1));  // no step can have it
    compute(run, step);
    run.model.expect({});
    EXPECT_THROW(run.loop.end_step(rate_of(-1)), InvalidArgument);
    return run.loop.end_step({});
  };
  // The first step that has more backwards shows it. The next one expects as many.
  return {{"nothing", with(nothing), {kAll, 0}},
          {"one_more_backward", with(one_more), {2 * kUnits, kUnits}},
          {"gradient_set", with(set_gradient), {kAll - 2, 2}},
          {"gradient_read", with(read_gradient), {kAll - 2, 2}},
          {"gradient_not_finite", with(not_a_number), {2 * kUnits, 2 * kUnits}},
          {"gradients_dropped", with(begin_anew), {kAll, 2 * kUnits}},
          {"backward_fails", with(fail), {kAll, 2 * kUnits}},
          {"moment_set", with(set_state(1)), {kAll - 2, 2}},
          {"master_set", with(set_state({})), {kAll - 2, 2}},
          {"state_read", with(read_state), {kAll, 0}},
          {"checkpoint_saved", with(save), {kAll, 0}},
          {"checkpoint_loaded", with(save_and_load), {kAll, 2 * kUnits}},
          {"evaluation", with(evaluate), {kAll, 0}},
          {"other_values", end_with_other_values, {2 * kUnits, 2 * kUnits}},
          {"values_as_expected", expect_values, {kAll, 0}},
          {"other_values_expected_later", expect_others, {kUnits, kUnits}},
          // The gradients of one block are still on their way when the values are right.
          {"values_refused", refuse_values, {2 * kUnits + 2, 0}}};
}

struct Result {
  Course course;
  std::vector<std::string> states;
  Counts counts;
};

Result take_steps(OnDevice& run, const Case& each) {
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    const bool ordinary = step == 0 || step == kSteps - 1;
    if (ordinary) compute(run, step);
    const StepResult ended = ordinary ? run.loop.end_step({}) : each.take(run, step);
    result.course.losses.push_back(ended.loss);
    result.course.norms.push_back(ended.gradient_norm);
  }
  for (const std::string& name : sluice::test::parameter_names()) {
    result.course.weights.push_back(sluice::test::bytes_of(run.loop.parameter(name)));
    for (const std::optional<std::size_t> moment : {std::optional<std::size_t>(), {0}, {1}})
      result.states.push_back(sluice::test::bytes_of(run.loop.state(name, moment)));
  }
  const EngineCounters counters = run.loop.counters();
  result.counts = {counters.speculative_updates_kept, counters.speculative_updates_dropped};
  run.loop.finish();
  return result;
}

LoopSetup setup_of(const char* weights, const char* keys, double clipping) {
  LoopSetup setup;
  setup.param_device = weights;
  setup.accumulation = kAccumulation;
  setup.clipping = clipping;
  setup.sluice_keys = keys;
  return setup;
}
constexpr const char* kSpeculates = R"("speculative_bytes": "auto", )";

void expect_same(const Result& a, const Result& b) {
  sluice::test::expect_same(a.course, b.course);
  EXPECT_TRUE(a.states == b.states) << "the states differ";
}

class LateSpeculation : public testing::TestWithParam<Case> {
 protected:
  LateSpeculation() { at::set_num_threads(1); }
};

// Without clipping too: a loop may never end its step.
TEST_P(LateSpeculation, HasTheBitsOfUpdatesThatWait) {
  for (const auto& [weights, clipping] :
       std::vector<std::pair<const char*, double>>{{"cpu", 0}, {"none", 1e9}}) {
    SCOPED_TRACE(weights);
    OnDevice waiting(setup_of(weights, "", clipping), test::make_stand_in_gpu(kMemoryBytes));
    const Result expected = take_steps(waiting, GetParam());
    EXPECT_EQ(expected.counts.kept + expected.counts.dropped, 0U);
    for (const std::uint64_t seed : test::schedules(25)) {
      SCOPED_TRACE("schedule " + std::to_string(seed));
      const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
      OnDevice run(setup_of(weights, kSpeculates, clipping), gpu.run_device());
      const Result result = take_steps(run, GetParam());
      expect_same(result, expected);
      // Gradients that arrive after the last backward find the values of the step's end.
      EXPECT_GE(result.counts.kept, GetParam().expected.kept);
      EXPECT_LE(result.counts.dropped, GetParam().expected.dropped);
      EXPECT_THAT(gpu.violations(), IsEmpty());
      if (HasFailure()) return;
    }
  }
}

// A later backward adds to the gradients where an update reads them.
TEST_P(LateSpeculation, HasTheBitsOfUpdatesThatWaitOnTheHost) {
  LoopSetup setup = setup_of("cpu", "", 1e9);
  setup.device_bytes = "auto";
  OnDevice waiting(setup);
  const Result expected = take_steps(waiting, GetParam());
  setup.sluice_keys = kSpeculates;
  OnDevice run(setup);
  const Result result = take_steps(run, GetParam());
  expect_same(result, expected);
  EXPECT_EQ(result.counts.kept, GetParam().expected.kept);
  EXPECT_EQ(result.counts.dropped, GetParam().expected.dropped);
}

INSTANTIATE_TEST_SUITE_P(Cases, LateSpeculation, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

// One step has a norm that clips, but only with the gradients that arrive last.
TEST(LateSpeculationClipped, UpdatesAgain) {
  at::set_num_threads(1);
  const Case ordinary{"ordinary",
                      [](OnDevice& run, int step) {
                        compute(run, step);
                        return run.loop.end_step({});
                      },
                      {}};
  const auto run_with = [&](const char* keys, double clipping) {
    OnDevice run(setup_of("none", keys, clipping), test::make_stand_in_gpu(kMemoryBytes));
    return take_steps(run, ordinary);
  };
  const double clipping = 0.9999 * std::ranges::max(run_with("", 1e9).course.norms);
  const Result expected = run_with("", clipping);
  const Result result = run_with(kSpeculates, clipping);
  expect_same(result, expected);
  EXPECT_GT(result.counts.dropped, 0U);
  EXPECT_GT(result.counts.kept, 0U);
}

// The updates that began are forgotten with the loop.
TEST(LateSpeculationUnended, ALoopEndsInsideAStep) {
  at::set_num_threads(1);
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const test::LateGpu gpu({.memory_bytes = kMemoryBytes, .seed = seed});
    OnDevice run(setup_of("cpu", kSpeculates, 0), gpu.run_device());
    compute(run, 0);
    run.loop.end_step({});
    const auto weights = [&] { return sluice::test::bytes_of(run.loop.parameter(kParameter)); };
    const std::string before = weights();
    compute(run, 1);
    if (seed % 2 == 0) continue;
    run.loop.finish();
    EXPECT_EQ(weights(), before);
  }
}

}  // namespace
}  // namespace sluice::train
