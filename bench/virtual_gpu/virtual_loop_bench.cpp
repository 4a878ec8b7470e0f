// Steps of a loop of the user's own on an imitated GPU, in virtual time, with updates that wait for
// the end of the step and with updates that begin in its last backward.
//
//   virtual_loop_bench [--copy-GBps N] [--update-GBps N] [--compute-TFLOPs N] [--layers N]
//
// The model has the shapes of GPT-2 with 1.3 B parameters at a width of 256, as virtual_step_bench
// has them. A piece of an update is a twelfth of a block. Units compute as hooks on a model have
// them do: activations stay, and nothing is computed again. LoopCore and all below it run as behind
// the Python package; matrix products, copies and updates take virtual time, and everything else
// takes none.
//
// Prints a JSON object: for each case the time of a step's products over that of the step
// ("of_resident").

#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "user_loop/loop_core.hpp"
#include "virtual_gpu.hpp"
#include "virtual_optimizer.hpp"
#include "virtual_options.hpp"

namespace {

using namespace sluice;
using namespace sluice::train;
using bench::Rates;
using config::ByteBudget;
using torch::Tensor;

struct Case {
  const char* name;
  std::int64_t micro_batches;
  double clipping;
  bool speculates;
};
const std::vector<Case> kCases = {{"1.3B_8K", 1, 0, false},
                                  {"1.3B_8K_speculative", 1, 0, true},
                                  {"1.3B_8K_clipping", 1, 1e9, false},
                                  {"1.3B_8K_clipping_speculative", 1, 1e9, true},
                                  {"1.3B_32K", 4, 0, false},
                                  {"1.3B_32K_speculative", 4, 0, true}};

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kVocabulary = 6280;
constexpr std::int64_t kTokens = 32;      // of a micro-batch
constexpr double kTokensThatCost = 8192;  // whose time it takes
constexpr double kUpdateBytes = 26;       // of an element, read and written

config::TrainConfig config_of(const Case& each) {
  config::TrainConfig config = bench::virtual_config(each.micro_batches, each.clipping);
  if (each.speculates) config.sluice.updates.speculative_bytes = {ByteBudget::Kind::percent, 100};
  return config;
}

BroughtDevice on(const bench::VirtualGpu& gpu) {
  return {.facts = bench::virtual_facts, .make = [&gpu](const plan::Plan&) {
            RunDevice made = gpu.run_device();
            made.allocator.reset();  // LibTorch keeps its own
            return made;
          }};
}

Tensor weight(std::int64_t rows, std::int64_t columns) {
  return (torch::randn({rows, columns}) * 0.02).requires_grad_(true);
}

// An embedding, blocks of two products, and a head with the embedding's weight.
class Model {
 public:
  Model(LoopCore& loop, std::int64_t layers) : loop_(loop) {
    torch::manual_seed(1);
    const Tensor embedding = weight(kVocabulary, kWidth);
    add("embed", {{"embed.weight", embedding}},
        [embedding](const Tensor& ids) { return torch::embedding(embedding, ids); });
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string name = "h." + std::to_string(i);
      const Tensor up = weight(kWidth, 6 * kWidth);
      const Tensor down = weight(6 * kWidth, kWidth);
      add(name, {{name + ".up", up}, {name + ".down", down}}, [up, down](const Tensor& x) {
        return x + torch::mm(torch::relu(torch::mm(x, up)), down);
      });
    }
    const Tensor scale = torch::ones({kWidth}).requires_grad_(true);
    add("head", {{"head.scale", scale}, {"head.weight", embedding}},
        [scale, embedding](const Tensor& x) { return torch::mm(x * scale, embedding.t()); });
    loop_.initialize();
  }

  void take_micro_batch() {
    Tensor x = torch::arange(kTokens, torch::kInt64);
    const Tensor targets = (x + 1) % kVocabulary;
    std::vector<std::pair<Tensor, Tensor>> calls;  // inputs and outputs
    for (std::size_t i = 0; i < units_.size(); ++i) {
      Tensor input = x.detach();
      if (i > 0) input.requires_grad_(true);
      loop_.enter(units_[i], Pass::training);
      calls.emplace_back(input, forwards_[i](input));
      loop_.leave(units_[i]);
      x = calls.back().second;
    }
    const Tensor logits = x.detach().requires_grad_(true);
    const Tensor loss = torch::cross_entropy_loss(logits.to(torch::kFloat32), targets);
    loop_.add_loss(loss);
    loss.backward();
    loop_.begin_backward();
    Tensor gradient = logits.grad();
    for (std::size_t i = units_.size(); i-- > 0;) {
      loop_.enter(units_[i], Pass::training);
      loop_.begin_gradients(units_[i]);
      calls[i].second.backward(gradient);
      loop_.send_gradients(units_[i]);
      loop_.leave(units_[i]);
      gradient = calls[i].first.grad();
    }
    loop_.end_micro_batch();
  }

 private:
  void add(const std::string& name, const std::vector<std::pair<std::string, Tensor>>& params,
           std::function<Tensor(const Tensor&)> forward) {
    OwnUnit unit;
    unit.name = name;
    for (const auto& [param, value] : params) unit.named.push_back({param, value});
    units_.push_back(loop_.add_unit(std::move(unit)));
    forwards_.push_back(std::move(forward));
  }

  LoopCore& loop_;
  std::vector<std::size_t> units_;
  std::vector<std::function<Tensor(const Tensor&)>> forwards_;
};

void measure(const Case& each, const Rates& rates, std::int64_t layers, const char* separator) {
  constexpr int kWarm = 2;
  constexpr int kCounted = 3;
  bench::VirtualClock clock;
  bench::VirtualOptimizer optimizer;
  optimizer.clock = &clock;
  optimizer.bytes_per_second = 1e9 * rates.update_GBps;
  optimizer.bytes_of_element = kUpdateBytes;
  double step_seconds = 0;
  double compute_seconds = 0;
  EngineCounters counters;
  {
    const double flops =
        1e12 * rates.compute_TFLOPs * static_cast<double>(kTokens) / kTokensThatCost;
    bench::VirtualGpu gpu(clock, 1e9 * rates.copy_GBps, flops);
    LoopCore loop(config_of(each), {}, on(gpu));
    Model model(loop, layers);
    bench::use_optimizer(&optimizer);
    double began = 0;
    double computed = 0;
    for (int step = 0; step < kWarm + kCounted; ++step) {
      if (step == kWarm) {
        began = clock.now();
        computed = gpu.device().compute_seconds();
      }
      for (std::int64_t i = 0; i < each.micro_batches; ++i) model.take_micro_batch();
      SLUICE_CHECK(loop.end_step().updated, "a step was skipped");
    }
    step_seconds = (clock.now() - began) / kCounted;
    compute_seconds = (gpu.device().compute_seconds() - computed) / kCounted;
    loop.finish();
    counters = loop.counters();
  }
  bench::use_optimizer(nullptr);
  SLUICE_CHECK(optimizer.elements > 0, "no update took any time: the program is linked wrongly");
  std::printf("%s\n  {\"case\": \"%s\", \"of_resident\": %.4f, \"kept\": %llu, \"dropped\": %llu}",
              separator, each.name, compute_seconds / step_seconds,
              static_cast<unsigned long long>(counters.speculative_updates_kept),
              static_cast<unsigned long long>(counters.speculative_updates_dropped));
  std::fflush(stdout);
}

int run(int count, char** arguments) {
  Rates rates;
  std::int64_t layers = 24;
  for (int i = 1; i < count; i += 2) {
    const std::string name = arguments[i];
    SLUICE_CHECK(i + 1 < count, name + " has no value");
    const char* const value = arguments[i + 1];
    if (name == "--layers")
      layers = std::atoll(value);
    else if (!bench::set_rate(rates, name, value))
      throw InvalidArgument(name +
                            ": expected --copy-GBps, --update-GBps, --compute-TFLOPs or --layers");
  }
  SLUICE_CHECK(
      rates.copy_GBps > 0 && rates.update_GBps > 0 && rates.compute_TFLOPs > 0 && layers > 0,
      "rates and layers are positive numbers");
  at::set_num_threads(1);
  std::printf("{\"copy_GBps\": %g, \"update_GBps\": %g, \"compute_TFLOPs\": %g, \"cases\": [",
              rates.copy_GBps, rates.update_GBps, rates.compute_TFLOPs);
  const char* separator = "";
  for (const Case& each : kCases) {
    measure(each, rates, layers, separator);
    separator = ",";
  }
  std::printf("\n]}\n");
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "virtual_loop_bench: %s\n", error.what());
    return 2;
  }
}
