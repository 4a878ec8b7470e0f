#include "probe.hpp"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "device_allocator.hpp"
#include "median.hpp"
#include "optimizer_tile.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/models/gpt2.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/models/parallel_check.hpp"
#include "sluice/nvme/drive_rates.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/swap_store.hpp"
#include "tensor_bytes.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

// Of `work`, without what comes `before` it: the median of several calls, at least three and for
// about a second.
template <typename Before, typename Work>
double median_seconds(const Before& before, const Work& work) {
  constexpr std::size_t kLeast = 3;
  constexpr std::size_t kMost = 40;
  constexpr double kEnough = 1.0;
  before();
  work();  // memory is touched, kernels are chosen
  std::vector<double> seconds;
  double sum = 0;
  while (seconds.size() < kLeast || (sum < kEnough && seconds.size() < kMost)) {
    before();
    const auto begin = std::chrono::steady_clock::now();
    work();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    sum += seconds.back();
  }
  return median(std::move(seconds));
}

template <typename Work>
double median_seconds(const Work& work) {
  return median_seconds([] {}, work);
}

// Twice the largest cache of the processor, as far as it says.
std::int64_t beyond_caches_bytes() {
  constexpr long kLeast = 32 << 20;
  return 2 * std::max(kLeast, ::sysconf(_SC_LEVEL3_CACHE_SIZE));
}

// Embedding, one block, head; with weights and gradients of their own.
class Units {
 public:
  explicit Units(const plan::Plan& plan)
      : model_(one_block(plan.model)),
        layouts_(models::gpt2_units(model_, 1)),
        modules_(models::make_gpt2_modules(model_, torch_dtype(plan.compute_dtype))),
        dtype_(torch_dtype(plan.compute_dtype)),
        rows_(plan.config.micro_batch_size),
        elsewhere_(torch::zeros({beyond_caches_bytes()}, torch::kInt8)) {
    for (const zero::UnitLayout& layout : layouts_) {
      const auto count = static_cast<std::int64_t>(layout.flat_count);
      Tensor values = torch::empty({count});
      models::fill_initial(model_, layout, 1, 0,
                           {values.data_ptr<float>(), static_cast<std::size_t>(count)});
      weights_.push_back(values.to(dtype_));
      gradients_.push_back(torch::zeros({count}, dtype_));
    }
    for (std::size_t u = 0; u < layouts_.size(); ++u) {
      modules_[u]->bind(layouts_[u], weights_[u], lent(u, weights_));
      modules_[u]->bind_gradients(layouts_[u], gradients_[u], lent(u, gradients_));
    }
  }
  ~Units() {
    for (const auto& module : modules_) module->unbind();
  }
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  plan::UnitRates measure(std::size_t unit) {
    plan::UnitRates rates;
    rates.first = measure(unit, [this] { elsewhere_.add_(1); });
    rates.next = measure(unit, [] {});
    return rates;
  }

 private:
  // `forget` is called before each thing that is measured.
  template <typename Forget>
  plan::UnitSeconds measure(std::size_t unit, const Forget& forget) {
    const Tensor tokens =
        torch::randint(model_.vocab_size, {rows_, model_.n_positions}, torch::kInt64);
    const Tensor hidden = torch::randn({rows_, model_.n_positions, model_.n_embd}).to(dtype_);
    const models::DropoutKey key{.training = true, .seed = 1, .step = 1, .micro_batch = 0};
    plan::UnitSeconds seconds;
    if (unit + 1 == modules_.size()) {
      seconds.backward = median_seconds(forget, [&] {
        Tensor x = hidden.detach().clone().requires_grad_(true);
        modules_[unit]->loss(x, tokens).backward();
      });
      return seconds;
    }
    const auto input = [&] { return unit == 0 ? tokens : hidden.detach().requires_grad_(true); };
    seconds.forward = median_seconds(forget, [&] {
      const torch::NoGradGuard no_grad;
      modules_[unit]->forward(input(), key);
    });
    seconds.forward_keeping =
        median_seconds(forget, [&] { modules_[unit]->forward(input(), key); });
    Tensor y;
    const auto forward = [&] {
      y = modules_[unit]->forward(input(), key);
      forget();
    };
    seconds.backward = median_seconds(forward, [&] { y.backward(hidden); });
    return seconds;
  }

  static config::ModelConfig one_block(config::ModelConfig model) {
    model.n_layer = 1;
    return model;
  }
  std::vector<Tensor> lent(std::size_t unit, const std::vector<Tensor>& flats) const {
    std::vector<Tensor> views;
    for (const auto& from : layouts_[unit].borrowed)
      views.push_back(models::view_of(layouts_[from.unit].params[from.param], flats[from.unit]));
    return views;
  }

  const config::ModelConfig model_;
  const std::vector<zero::UnitLayout> layouts_;
  const std::vector<std::shared_ptr<models::UnitModule>> modules_;
  const torch::Dtype dtype_;
  const std::int64_t rows_;
  Tensor elsewhere_;  // takes the caches when it is written
  std::vector<Tensor> weights_;
  std::vector<Tensor> gradients_;
};

// Larger than the caches of most machines.
constexpr std::uint64_t kElements = 16U << 20U;

// As StateUpdater does it, with everything in memory.
double update_rate(const plan::Plan& plan, Executor& executor) {
  const models::StateFormat& format = plan.state_format;
  const std::size_t compute_bytes = kElements * size_of(plan.compute_dtype);
  std::array<std::vector<std::byte>, models::kMostStateParts> parts;
  StateSpans states;
  for (std::size_t i = 0; i < format.part_count(); ++i) {
    parts[i].resize(kElements * format.part(i).element_bytes);
    states[i] = parts[i];
  }
  std::vector<std::byte> gradient(compute_bytes);
  std::vector<std::byte> weight(format.is_split() ? 0 : compute_bytes);
  const cpu_adam::Tile tile = tile_of(plan, states, gradient, weight);
  return kElements / median_seconds([&] {
           cpu_adam::step(cpu_adam::AdamConfig{}, {.step = 1}, tile, executor);
         });
}

double gradient_rate(const plan::Plan& plan, Executor& executor) {
  Tensor gradient =
      torch::zeros({static_cast<std::int64_t>(kElements)}, torch_dtype(plan.compute_dtype));
  const std::span<std::byte> bytes(static_cast<std::byte*>(gradient.data_ptr()), gradient.nbytes());
  return static_cast<double>(bytes.size()) / median_seconds([&] {
           gradient.zero_();
           cpu_adam::gradient_stats(gradient_span(bytes, plan.compute_dtype), executor);
         });
}

double copy_rate(offload::Device& device) {
  constexpr std::size_t kBytes = 64 * kMiB;
  const offload::Buffer there = device.memory().allocate(kBytes, "probe");
  const std::vector<std::byte> here(kBytes, std::byte{1});
  return kBytes / median_seconds([&] { device.begin_copy_in(there.bytes(), here).finish(); });
}

double checksum_rate() {
  const std::vector<std::byte> bytes(64 * kMiB, std::byte{1});
  volatile std::uint64_t kept = 0;  // so that the hash is computed
  return static_cast<double>(bytes.size()) /
         median_seconds([&] { kept = offload::checksum_of(bytes); });
}

// Of a stripe the drive that is slowest for its share counts.
double together(const std::vector<double>& rates, std::vector<unsigned> weights) {
  if (weights.size() != rates.size()) weights = nvme::stripe_weights(rates);
  double all = 0;
  for (const unsigned weight : weights) all += weight;
  double least = rates.front() * all / weights.front();
  for (std::size_t i = 1; i < rates.size(); ++i)
    least = std::min(least, rates[i] * all / weights[i]);
  return least;
}

void measure_drives(const plan::Plan& plan, plan::MachineRates& rates) {
  const std::vector<std::string> directories = plan.swap_directories();
  if (directories.empty()) return;
  constexpr nvme::LoadPattern kPatterns[] = {nvme::LoadPattern::read, nvme::LoadPattern::write,
                                             nvme::LoadPattern::swap};
  const config::TrainConfig& config = plan.config;
  // As large as what will be swapped, as far as that is soon written: small files may be in caches
  // behind the drive.
  const std::uint64_t file_bytes = std::clamp(plan.planned.nvme, 64 * kMiB, 2 * kGiB);
  nvme::DriveRatesOptions options{.backend = nvme::parse_backend(config.sluice.io.backend),
                                  .io_threads = static_cast<unsigned>(plan.threads.io),
                                  .file_bytes = file_bytes,
                                  .seconds = 2};
  options.engine = {static_cast<std::uint32_t>(config.aio.block_size),
                    static_cast<unsigned>(config.aio.queue_depth),
                    static_cast<unsigned>(config.sluice.io.reads_per_write)};
  const auto measured = nvme::measure_drive_rates(directories, kPatterns, options);
  SLUICE_CHECK(!measured.empty(),
               directories.front() + ": too little space is free to measure its drive in");
  const std::vector<unsigned>& weights = config.sluice.io.drive_weights;
  rates.read_bytes_per_second = together(measured[0], weights);
  rates.write_bytes_per_second = together(measured[1], weights);
  rates.swap_bytes_per_second = together(measured[2], weights);
}

}  // namespace

plan::MachineRates probe_rates(const plan::Plan& plan, const ProbeProgress& progress,
                               const volatile int& stop) {
  constexpr double kPieces = 8;
  double piece = 0;
  const auto next = [&](const std::string& what) {
    if (stop != 0) throw Interrupted(stop);
    progress(what, piece++ / kPieces);
  };
  at::set_num_threads(plan.threads.compute);
  models::check_parallel_work();
  plan::MachineRates rates;
  const std::shared_ptr<offload::Device> device = offload::make_host_device(
      {.memory_bytes = offload::kUnlimited, .bandwidth_bytes_per_second = std::nullopt});
  // As in a run.
  const DeviceAllocatorScope allocator(
      std::shared_ptr<offload::MemoryPool>(device, &device->memory()));
  const auto executor = make_executor(plan.threads.optimizer);
  {
    Units units(plan);
    next("the embedding");
    rates.embedding = units.measure(0);
    next("a block");
    rates.block = units.measure(1);
    next("the head");
    rates.head = units.measure(2);
  }
  next("gradients");
  rates.gradient_bytes_per_second = gradient_rate(plan, *executor);
  next("the optimizer");
  rates.update_elements_per_second = update_rate(plan, *executor);
  next("copies");
  rates.copy_bytes_per_second = copy_rate(*device);
  next("checksums");
  rates.checksum_bytes_per_second = checksum_rate();
  next("drives");
  measure_drives(plan, rates);
  if (stop != 0) throw Interrupted(stop);
  return rates;
}

}  // namespace sluice::train
