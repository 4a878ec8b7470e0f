#include "virtual_optimizer.hpp"

namespace sluice::bench {

namespace {

std::atomic<VirtualOptimizer*> used{nullptr};

std::size_t elements_of(const cpu_adam::Tile& tile) {
  return std::visit([](const auto& gradient) { return gradient.size(); }, tile.gradient);
}

}  // namespace

void use_optimizer(VirtualOptimizer* optimizer) {
  used = optimizer;
}

}  // namespace sluice::bench

// Names that the linker's --wrap makes of sluice::cpu_adam::step_part().
#define SLUICE_STEP_PART(prefix) \
  prefix##_ZN6sluice8cpu_adam9step_partERKSt7variantIJNS0_10AdamConfigENS0_13AdagradConfigENS0_10LionConfigENS0_9SgdConfigEEERKNS0_4StepERKNS0_4TileEm

extern "C" {

bool SLUICE_STEP_PART(__real_)(const sluice::cpu_adam::OptimizerConfig& config,
                               const sluice::cpu_adam::Step& step,
                               const sluice::cpu_adam::Tile& part, std::size_t elements);

bool SLUICE_STEP_PART(__wrap_)(const sluice::cpu_adam::OptimizerConfig& config,
                               const sluice::cpu_adam::Step& step,
                               const sluice::cpu_adam::Tile& part, std::size_t elements) {
  const bool finite = SLUICE_STEP_PART(__real_)(config, step, part, elements);
  sluice::bench::VirtualOptimizer* const used = sluice::bench::used;
  if (used == nullptr) return finite;
  const std::size_t count = sluice::bench::elements_of(part);
  used->elements += count;
  if (used->clock != nullptr) {
    used->clock->occupy(
        used->memory, used->bytes_of_element * static_cast<double>(count) / used->bytes_per_second);
  }
  return finite;
}
}
