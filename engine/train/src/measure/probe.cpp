#include "measure/probe.hpp"

#include <ATen/Parallel.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "device/gradient_stats.hpp"
#include "device/run_device.hpp"
#include "device/tensor_bytes.hpp"
#include "measure/median.hpp"
#include "measure/unit_samples.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/models/parallel_check.hpp"
#include "sluice/nvme/drive_rates.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/swap_store.hpp"
#include "update/optimizer_tile.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

// Median time of several calls of `work`: at least three, for about a second. `before` runs before
// each call and is not measured.
template <typename Before, typename Work>
double median_seconds(const Before& before, const Work& work) {
  constexpr std::size_t kLeast = 3;
  constexpr std::size_t kMost = 40;
  constexpr double kEnough = 1.0;
  before();
  work();  // first use: touches memory, chooses kernels
  std::vector<double> seconds;
  double sum = 0;
  while (seconds.size() < kLeast || (sum < kEnough && seconds.size() < kMost)) {
    before();
    const auto begin = std::chrono::steady_clock::now();
    work();
    seconds.push_back(seconds_since(begin));
    sum += seconds.back();
  }
  return median(std::move(seconds));
}

template <typename Work>
double median_seconds(const Work& work) {
  return median_seconds([] {}, work);
}

// Twice the size of the processor's largest cache, and at least 64 MiB: not every processor reports
// its caches.
std::int64_t beyond_caches_bytes() {
  constexpr long kLeast = 32 << 20;
  return 2 * std::max(kLeast, ::sysconf(_SC_LEVEL3_CACHE_SIZE));
}

// Times the units of a model.
class TimedUnits {
 public:
  TimedUnits(const SampleShape& shape, const RunDevice& device)
      : device_(device),
        units_(shape, device.where),
        elsewhere_(device.gpu ? Tensor() : torch::zeros({beyond_caches_bytes()}, torch::kInt8)) {}

  plan::UnitRates measure(std::size_t unit) {
    plan::UnitRates rates;
    rates.first = measure(unit, [this] {
      if (elsewhere_.defined()) elsewhere_.add_(1);
    });
    rates.next = measure(unit, [] {});
    return rates;
  }

 private:
  // `forget` runs before each measured call.
  template <typename Forget>
  plan::UnitSeconds measure(std::size_t unit, const Forget& forget) {
    const Tensor x = units_.input(unit);
    const Tensor output_gradient = units_.output_gradient(unit);
    const auto input = [&] { return unit == 0 ? x : x.detach().requires_grad_(true); };
    plan::UnitSeconds seconds;
    if (units_.is_head(unit)) {
      seconds.backward = settled_seconds(forget, [&] { units_.run(unit, input()).backward(); });
      return seconds;
    }
    seconds.forward = settled_seconds(forget, [&] {
      const torch::NoGradGuard no_grad;
      units_.run(unit, x);
    });
    seconds.forward_saving = settled_seconds(forget, [&] { units_.run(unit, input()); });
    Tensor y;
    const auto forward = [&] {
      y = units_.run(unit, input());
      forget();
    };
    seconds.backward = settled_seconds(forward, [&] { y.backward(output_gradient); });
    return seconds;
  }

  // Includes the work that a GPU finishes after the calls have returned.
  template <typename Before, typename Work>
  double settled_seconds(const Before& before, const Work& work) {
    const auto settle = [this] {
      if (device_.gpu) device_.gpu->synchronize();
    };
    return median_seconds(
        [&] {
          before();
          settle();
        },
        [&] {
          work();
          settle();
        });
  }

  const RunDevice& device_;
  const UnitSamples units_;
  Tensor elsewhere_;  // writing it evicts the processor's caches; undefined on a GPU
};

// Elements of the optimizer's probes: beyond the caches of most machines.
constexpr std::uint64_t kElements = 16U << 20U;

// Elements per second of the optimizer step, with everything in memory.
double update_rate(const plan::Plan& plan, Executor& executor) {
  const models::StateFormat& format = plan.state_format;
  const std::size_t compute_bytes = kElements * size_of(plan.compute_dtype);
  std::array<std::vector<std::byte>, models::kMostStateParts> parts;
  StateSpans states;
  for (std::size_t i = 0; i < format.part_count(); ++i) {
    parts[i].resize(kElements * format.part(i).element_bytes);
    states[i] = parts[i];
  }
  std::vector<std::byte> gradient(kElements * size_of(plan.config.gradient_dtype()));
  std::vector<std::byte> weight(format.is_split() ? 0 : compute_bytes);
  const cpu_adam::Tile tile = tile_of(plan, states, gradient, weight);
  const cpu_adam::OptimizerConfig optimizer = kernel_config(plan.config.optimizer, 1e-3);
  return kElements /
         median_seconds([&] { cpu_adam::step(optimizer, {.step = 1}, tile, executor); });
}

// Bytes per second of zeroing a gradient and computing its norm.
double gradient_rate(const plan::Plan& plan, const RunDevice& device, Executor& executor) {
  const Tensor gradient = torch::zeros(
      {static_cast<std::int64_t>(kElements)},
      torch::TensorOptions().dtype(torch_dtype(plan.config.gradient_dtype())).device(device.where));
  const offload::DeviceSpan memory = device_span_of(gradient);
  const Tensor norm = torch::zeros({1}, gradient.options().dtype(torch::kFloat64));
  return static_cast<double>(memory.size_bytes()) / median_seconds([&] {
           gradient.zero_();
           if (device.device->host_addressable()) {
             cpu_adam::gradient_stats(
                 gradient_span(device.device->host_view(memory), plan.config.gradient_dtype()),
                 executor);
           } else {
             issue_squared_norm(device.gpu.get(), gradient, norm);
             if (device.gpu) device.gpu->synchronize();
           }
         });
}

// Bytes per second of copies from host memory to the device.
double copy_rate(offload::Device& device, bool pinned) {
  constexpr std::size_t kBytes = 64 * kMiB;
  const offload::Buffer there = device.memory().allocate(kBytes, "probe");
  offload::MemoryPool memory(offload::Tier::host, offload::kUnlimited,
                             pinned ? device.make_pinned_source() : offload::make_host_source());
  const offload::Buffer here = memory.allocate(kBytes, "probe");
  std::memset(here.data(), 1, kBytes);
  return kBytes /
         median_seconds([&] { device.begin_copy_in(there.device_span(), here.bytes()).finish(); });
}

// Bytes per second of checksums on all threads, as updates take them.
double checksum_rate(Executor& executor) {
  const std::vector<std::byte> bytes(64 * kMiB, std::byte{1});
  std::vector<std::uint64_t> checksums(bytes.size() / offload::kChecksumChunkBytes);
  return static_cast<double>(bytes.size()) / median_seconds([&] {
           executor.for_each(checksums.size(), [&](std::size_t chunk) {
             checksums[chunk] = offload::checksum_of(std::span(bytes).subspan(
                 chunk * offload::kChecksumChunkBytes, offload::kChecksumChunkBytes));
           });
         });
}

// Rate of a stripe over drives with these rates. The drive that is slowest for its share bounds it.
// stripe_weights() chooses the weights unless there is one for each drive.
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
  // The size of the swapped files, up to 2 GiB because writing takes time. Small files may lie in
  // caches behind the drive, and a file has at least one block.
  const std::uint64_t file_bytes =
      std::clamp(std::max(plan.planned.tiers.nvme, config.aio.block_size), 64 * kMiB, 2 * kGiB);
  nvme::DriveRatesOptions options{.backend = nvme::parse_backend(config.sluice.io.backend),
                                  .io_threads = static_cast<unsigned>(plan.schedule.threads.io),
                                  .file_bytes = file_bytes,
                                  .seconds = 2};
  options.engine = {static_cast<std::uint32_t>(config.aio.block_size),
                    static_cast<unsigned>(config.aio.queue_depth),
                    static_cast<unsigned>(config.sluice.io.reads_per_write)};
  const auto measured = nvme::measure_drive_rates(directories, kPatterns, options);
  // check_drive_rates() found room before; another program may have filled the drive since.
  if (measured.empty())
    throw DoesNotFit(directories.front() + ": too little space is free to measure its drive in");
  const std::vector<unsigned>& weights = config.sluice.io.drive_weights;
  rates.read_bytes_per_second = together(measured[0], weights);
  rates.write_bytes_per_second = together(measured[1], weights);
  rates.swap_bytes_per_second = together(measured[2], weights);
}

}  // namespace

plan::MachineRates probe_rates(const plan::Plan& plan, const ProbeProgress& progress,
                               const std::atomic<int>& stop) {
  constexpr double kPieces = 8;
  double piece = 0;
  const auto next = [&](const std::string& what) {
    if (stop != 0) throw Interrupted(stop);
    progress(what, piece++ / kPieces);
  };
  check_threads(plan.further_threads());
  at::set_num_threads(plan.schedule.threads.compute);
  models::check_parallel_work();
  plan::MachineRates rates;
  if (plan.device.gpu) set_arithmetic(plan.config.sluice);
  const RunDevice device = make_run_device(
      plan.device.gpu, plan.device.gpu ? plan.budget.device_bytes : std::nullopt, nullptr);
  const auto executor = make_executor(plan.schedule.threads.optimizer);
  {
    TimedUnits units({plan.model, plan.compute_dtype, plan.config.gradient_dtype(),
                      plan.config.micro_batch_size},
                     device);
    next("the embedding");
    rates.embedding = units.measure(0);
    next("a block");
    rates.block = units.measure(1);
    next("the head");
    rates.head = units.measure(2);
  }
  next("gradients");
  rates.gradient_bytes_per_second = gradient_rate(plan, device, *executor);
  next("the optimizer");
  rates.update_elements_per_second = update_rate(plan, *executor);
  next("copies");
  rates.copy_bytes_per_second = copy_rate(*device.device, plan.planned.pinned_staging);
  next("checksums");
  rates.checksum_bytes_per_second = checksum_rate(*executor);
  next("drives");
  measure_drives(plan, rates);
  if (stop != 0) throw Interrupted(stop);
  return rates;
}

}  // namespace sluice::train
