// Steps of the engine on an imitated GPU, in virtual time, beside what `sluice plan` predicts for a
// machine with these rates.
//
//   virtual_step_bench [--copy-GBps N] [--update-GBps N] [--compute-TFLOPs N] [--case NAME]
//   [--layers N] [--tiles N] [--tile-elements N] [--wake-up-us N] [--copies-use-memory 0|1]
//   [--tiles-in-cache 0|1] [--gradients plan|host|gpu] [--upper-halves plan|host|gpu]
//
// --tiles, --tile-elements: of the ring of updates. A block has 49,152 elements, six tiles.
// --wake-up-us: from the end of a copy until a thread knows of it.
// --copies-use-memory: copies take their bytes of the rate of updates. --tiles-in-cache: gradients
// and upper halves that are copied to tiles do not, nor do the updates that use them there.
// --gradients, --upper-halves: where gradients wait for their updates, and where the upper halves
// of split masters are, in place of where the plan puts them.
//
// The defaults are an H100's rates. Models have the shapes of GPT-2 with 1.3 and 6.7 B parameters
// at a width of 64: the same blocks, micro-batches and passes, and embeddings of the same size
// beside a block. Operations take longer in proportion to the tokens that a micro-batch lacks, so
// computing, copies and updates stand to each other as in the large model. StepRunner,
// StateUpdater, the scheduler of tiles and the units run as in `sluice train`; time is virtual
// (virtual_clock.hpp).
//
// Prints a JSON object: for each case the step over that of a machine whose copies and updates take
// no time ("of_resident": the shorter over the longer), the same by the prediction, and the
// difference. Ends with 1 when a difference is larger than 0.03, or than 0.05 with "gpu_updates":
// there gradients wait behind states for the link, which the prediction leaves out.

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "run/initial_weights.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/dataset.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/plan/tile_layout.hpp"
#include "step/step_runner.hpp"
#include "virtual_cases.hpp"
#include "virtual_gpu.hpp"
#include "virtual_optimizer.hpp"
#include "virtual_options.hpp"

namespace {

using namespace sluice;
using namespace sluice::train;
using config::ByteBudget;
using sluice::bench::Asked;
using sluice::bench::Case;
using sluice::bench::kCases;
using sluice::bench::Rates;
using sluice::bench::VirtualClock;
using sluice::bench::VirtualGpu;
using sluice::bench::VirtualOptimizer;

constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kPositions = 32;
constexpr std::uint64_t kSeed = 1;
// Bytes of an element: 16-bit gradient, weight and low half and two moments in fp32 are read, all
// but the gradient are written, into second states too.
constexpr double kUpdateBytes = 26;
constexpr double kGradientBytes = 2;
constexpr double kHalfBytes = 2;  // of the upper half; read, and written

config::TrainConfig config_of(const Case& each) {
  config::TrainConfig config = bench::virtual_config(each.micro_batches, each.clipping);
  config.sluice.passes.each = each.per_pass;
  if (each.last_pass > 0) config.sluice.passes.last = each.last_pass;
  config.sluice.updates.on_gpu = each.gpu_updates;
  config.zero.offload_optimizer.ratio = each.ratio;
  if (each.speculative > 0)
    config.sluice.updates.speculative_bytes = {ByteBudget::Kind::percent, each.speculative};
  return config;
}

config::ModelConfig model_of(const Case& each) {
  config::ModelConfig model;
  model.n_layer = each.layers;
  model.n_embd = kWidth;
  model.n_head = 4;
  model.n_positions = kPositions;
  model.vocab_size = each.vocabulary;
  model.embd_pdrop = model.attn_pdrop = model.resid_pdrop = 0;
  return model;
}

// Gives the gradients of units whose states are in host memory a home on `tier`. Those of the
// embedding, which the head adds to, stay on the GPU.
void move_gradients(plan::Plan& plan, offload::Tier tier) {
  for (plan::UnitPlacement& unit : plan.units) {
    if (&unit == &plan.units.front() || unit.states != offload::Tier::host) continue;
    unit.gradients = tier;
    unit.gradients_use_slots = false;
  }
}

// Gives the upper halves of units with states in host memory a home there, or their weights on the
// GPU alone.
void move_halves(plan::Plan& plan, offload::Tier tier) {
  for (plan::UnitPlacement& unit : plan.units) unit.half_in_weights = tier == offload::Tier::device;
}

plan::Plan plan_of(const Case& each, const Asked& asked) {
  const config::TrainConfig config = config_of(each);
  plan::Plan plan = plan::make_plan(config, model_of(each), plan::Placement::configured,
                                    bench::virtual_facts(config));
  plan.rings.update.tile_elements = 8192;  // six tiles of a block; a large model has some 50
  if (each.gpu_updates) plan.rings.update.tile_elements = 2048;  // 24 of a block
  if (asked.tile_elements > 0) plan.rings.update.tile_elements = asked.tile_elements;
  if (asked.tiles > 0) plan.rings.update.tiles = asked.tiles;
  if (asked.gradients && !plan.gradients_summed_on_device()) move_gradients(plan, *asked.gradients);
  if (asked.halves) move_halves(plan, *asked.halves);
  constexpr std::uint64_t kMore = std::uint64_t{1} << 28U;  // for what was moved
  plan.planned.tiers.host += kMore;
  plan.planned.pinned_bytes += kMore;
  plan.rings.update.tile_bytes =
      plan::tile_layout(plan.units, plan.state_format,
                        {plan.compute_dtype, plan.config.gradient_dtype()},
                        plan.rings.update.tile_elements)
          .total;
  return plan;
}

// Parameters of a block of the large model for each of the small one, and so seconds.
double scale_of(const Case& each) {
  constexpr double kWidthOf24Layers = 2048;
  constexpr double kWidthOf32Layers = 4096;
  const double width =
      each.vocabulary == kCases.front().vocabulary ? kWidthOf24Layers : kWidthOf32Layers;
  return width * width / (kWidth * kWidth);
}

// Operations of a second, scaled by the tokens that a micro-batch lacks.
double flops_of(const Case& each, const Rates& rates) {
  return 1e12 * rates.compute_TFLOPs * static_cast<double>(kPositions) / each.tokens;
}

// Rates that `sluice plan --probe` would measure of this machine. Matrix products take all time:
// 2 operations for each weight and token forward, and 4 backward.
plan::MachineRates machine_rates(const Case& each, const Rates& rates) {
  const double seconds_of_weight = 2.0 * static_cast<double>(kPositions) / flops_of(each, rates);
  const double block = 12.0 * kWidth * kWidth * seconds_of_weight;
  const double head = static_cast<double>(each.vocabulary) * kWidth * seconds_of_weight;
  plan::MachineRates machine;
  machine.block.first = {.forward = block, .forward_saving = block, .backward = 2 * block};
  machine.head.first = {.forward = head, .forward_saving = 0, .backward = 3 * head};
  machine.block.next = machine.block.first;
  machine.head.next = machine.head.first;
  machine.update_elements_per_second = 1e9 * rates.update_GBps / kUpdateBytes;
  machine.copy_bytes_per_second = 1e9 * rates.copy_GBps;
  return machine;
}

class Data {
 public:
  explicit Data(const Case& each)
      : path_(std::filesystem::temp_directory_path() /
              ("virtual_step_bench." + std::to_string(::getpid()))) {
    std::ofstream text(path_);
    for (std::int64_t i = 0; i < 2 * kPositions * each.micro_batches; ++i)
      text << static_cast<char>('a' + i * i % 23);
  }
  ~Data() { std::filesystem::remove(path_); }
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;
  models::Dataset dataset() const {
    return {path_.string(), static_cast<std::uint64_t>(kPositions), 256};
  }

 private:
  const std::filesystem::path path_;
};

struct Measured {
  double step_seconds = 0;
  double compute_seconds = 0;  // of a step
  SpeculativeCounters speculated;
  double device_share = 0;  // of the elements that were updated
};

// Gradients of all states in host memory are copied to tiles.
bool gradients_wait_on_gpu(const plan::Plan& plan) {
  return std::all_of(plan.units.begin(), plan.units.end(), [](const plan::UnitPlacement& unit) {
    return unit.states != offload::Tier::host || unit.gradients == offload::Tier::device;
  });
}

// So are the upper halves, and the weights of all tiles come from there.
bool halves_are_in_weights(const plan::Plan& plan) {
  return std::all_of(plan.units.begin(), plan.units.end(), [&](const plan::UnitPlacement& unit) {
    return unit.states != offload::Tier::host || plan::half_copied_to_tile(unit, plan.state_format);
  });
}

// Copies and updates take their part of the memory.
void use_memory(const plan::Plan& plan, const Rates& rates, bench::VirtualCopies& copies,
                VirtualOptimizer& optimizer) {
  optimizer.bytes_per_second = 1e9 * rates.update_GBps;
  optimizer.bytes_of_element = kUpdateBytes;
  if (rates.copies_use_memory) copies.memory = &optimizer.memory;
  copies.memory_bandwidth = optimizer.bytes_per_second;
  if (!rates.tiles_in_cache) return;
  const std::size_t tile_bytes = 2 * plan.rings.update.tile_elements;  // of a gradient or half
  if (gradients_wait_on_gpu(plan)) {
    optimizer.bytes_of_element -= kGradientBytes;
    copies.cached_out_bytes = tile_bytes;
  }
  if (halves_are_in_weights(plan)) {
    optimizer.bytes_of_element -= 2 * kHalfBytes;
    copies.cached_out_bytes = copies.cached_in_bytes = tile_bytes;
  }
}

// The seconds of a step in the long run.
Measured measure(const Case& each, const plan::Plan& plan, const Rates& rates) {
  constexpr int kWarm = 1;
  constexpr int kCounted = 2;
  VirtualClock clock;
  VirtualOptimizer optimizer;
  const Data data(each);
  Measured measured;
  {
    VirtualGpu gpu(clock, 1e9 * rates.copy_GBps, flops_of(each, rates));
    RunResources resources(plan, {SwapMode::create}, nullptr, gpu.run_device());
    initialise_states(resources, kSeed, std::nullopt);
    optimizer.clock = &clock;
    bench::VirtualCopies copies;
    copies.wake_up_seconds = 1e-6 * rates.wake_up_us / scale_of(each);
    use_memory(plan, rates, copies, optimizer);
    gpu.device().set_copies(copies);
    bench::use_optimizer(&optimizer);
    StepRunner runner(resources, kSeed);
    Progress progress;
    double began = 0;
    double computed = 0;
    for (int step = 0; step < kWarm + kCounted; ++step) {
      if (step == kWarm) {
        began = clock.now();
        computed = gpu.device().compute_seconds();
      }
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward =
          runner.forward_backward(data.dataset(), progress.step + 1, 1, update, {});
      SLUICE_CHECK(runner.end_step(backward, update, progress).updated, "a step was skipped");
    }
    measured.step_seconds = (clock.now() - began) / kCounted;
    measured.compute_seconds = (gpu.device().compute_seconds() - computed) / kCounted;
    runner.finish_updates();
    const UpdateCounters counters = resources.updater->counters();
    measured.speculated = counters.speculated;
    const auto device = static_cast<double>(counters.device_elements);
    measured.device_share = device / (device + static_cast<double>(optimizer.elements));
  }
  bench::use_optimizer(nullptr);
  SLUICE_CHECK(optimizer.elements > 0, "no update took any time: the program is linked wrongly");
  return measured;
}

// Prints the case's line. Returns the difference.
double compare(const Case& each, const Rates& rates, const Asked& asked, const char* separator) {
  const plan::Plan plan = plan_of(each, asked);
  const Measured measured = measure(each, plan, rates);
  const plan::Prediction predicted = plan::predict(plan, machine_rates(each, rates));
  // A resident run computes nothing again.
  Case resident = each;
  resident.last_pass = 0;
  const double resident_seconds =
      plan::predict(plan_of(resident, {}), machine_rates(each, rates)).compute_seconds;
  const double ratio = resident_seconds / measured.step_seconds;
  const double predicted_ratio = resident_seconds / predicted.step_seconds;
  const double difference = predicted_ratio - ratio;
  std::printf(
      "%s\n  {\"case\": \"%s\", \"of_resident\": %.4f, \"predicted\": %.4f, \"difference\": %.4f, "
      "\"exposed\": %.4f, \"compute_as_predicted\": %.4f, \"kept\": %llu, \"dropped\": %llu, "
      "\"device_share\": %.2f}",
      separator, each.name, ratio, predicted_ratio, difference, 1 - ratio,
      measured.compute_seconds / predicted.compute_seconds,
      static_cast<unsigned long long>(measured.speculated.kept),
      static_cast<unsigned long long>(measured.speculated.dropped), measured.device_share);
  std::fflush(stdout);
  return difference;
}

int run(int count, char** arguments) {
  const auto [rates, asked] = sluice::bench::read_options(count, arguments);
  at::set_num_threads(1);
  std::printf("{\"copy_GBps\": %g, \"update_GBps\": %g, \"compute_TFLOPs\": %g, \"cases\": [",
              rates.copy_GBps, rates.update_GBps, rates.compute_TFLOPs);
  const char* separator = "";
  double largest = 0;
  bool agree = true;
  for (Case each : kCases) {
    if (!asked.only.empty() && asked.only != each.name) continue;
    if (asked.layers > 0) each.layers = asked.layers;
    const double difference = std::abs(compare(each, rates, asked, separator));
    largest = std::max(largest, difference);
    agree = agree && difference <= (each.gpu_updates ? 0.05 : 0.03);
    separator = ",";
  }
  std::printf("\n], \"largest_difference\": %.4f}\n", largest);
  SLUICE_CHECK(*separator != 0, "no case has the name " + asked.only);
  return agree ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "virtual_step_bench: %s\n", error.what());
    return 2;
  }
}
