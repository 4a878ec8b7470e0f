#include "measure/unit_workspaces.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "measure/unit_samples.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

// The growth of a pool since start().
class WorkspaceWatch {
 public:
  explicit WorkspaceWatch(offload::MemoryPool& pool) : pool_(pool) { start(); }
  void start() {
    pool_.reset_peak();
    before_bytes_ = pool_.usage().live_bytes;
  }
  std::uint64_t live_bytes() const { return pool_.usage().live_bytes - before_bytes_; }
  std::uint64_t peak_bytes() const { return pool_.usage().peak_live_bytes - before_bytes_; }

 private:
  offload::MemoryPool& pool_;
  std::uint64_t before_bytes_ = 0;
};

models::UnitWorkspace measure(const UnitSamples& units, std::size_t unit,
                              offload::MemoryPool& pool) {
  models::UnitWorkspace seen;
  Tensor x = units.input(unit);
  const Tensor output_gradient = units.output_gradient(unit);
  WorkspaceWatch watch(pool);
  {
    const torch::NoGradGuard no_grad;
    const Tensor y = units.run(unit, x);
    seen.forward_bytes = watch.peak_bytes();
  }
  if (unit > 0) x.requires_grad_();
  watch.start();
  Tensor y = units.run(unit, x);
  seen.keeping_bytes = watch.peak_bytes();
  seen.kept_bytes = watch.live_bytes() - offload::pool_bytes(y.nbytes());
  y.backward(output_gradient);
  seen.backward_bytes = watch.peak_bytes();
  // The plan relies on keeping_bytes >= forward_bytes.
  seen.keeping_bytes = std::max(seen.keeping_bytes, seen.forward_bytes);
  if (units.is_head(unit)) seen.keeping_bytes = seen.kept_bytes = 0;  // backward follows at once
  return seen;
}

}  // namespace

models::UnitWorkspaces measure_workspaces(const config::TrainConfig& config,
                                          const config::ModelConfig& model,
                                          const RunDevice& device) {
  offload::MemoryPool& pool = device.device->memory();
  const WorkspaceWatch all(pool);
  models::UnitWorkspaces seen;
  {
    const UnitSamples units(
        {model, config.compute_dtype(), config.gradient_dtype(), config.micro_batch_size},
        device.where);
    // The first use also loads libraries and takes memory that stays; only the second use counts.
    for (std::size_t unit = 0; unit < units.size(); ++unit) measure(units, unit, pool);
    seen.embedding = measure(units, 0, pool);
    seen.block = measure(units, 1, pool);
    seen.head = measure(units, 2, pool);
  }
  seen.held_bytes = all.live_bytes();
  seen.measured = true;
  seen.micro_batch = config.micro_batch_size;
  seen.n_positions = model.n_positions;
  return seen;
}

models::UnitWorkspaces measure_workspaces(const config::TrainConfig& config,
                                          const config::ModelConfig& model,
                                          const plan::GpuFacts& gpu, const StartedWork& started) {
  started("loading LibTorch's part for GPUs");
  set_arithmetic(config.sluice);
  RunDevice device = make_run_device(gpu, std::nullopt, nullptr);
  started("measuring the units");
  const models::UnitWorkspaces seen = measure_workspaces(config, model, device);
  // A single live block would keep all of this memory, and the run needs it.
  const std::shared_ptr<offload::Device> memory = device.device;
  device.gpu.reset();
  const std::uint64_t left = memory->memory().usage().live_bytes;
  if (left > 0) {
    throw Error("LibTorch keeps " + format_bytes(left) +
                " of the GPU's memory beyond its use: this version of it does not work with "
                "memory that is given to it");
  }
  return seen;
}

}  // namespace sluice::train
