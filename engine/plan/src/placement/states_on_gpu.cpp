#include "placement/states_on_gpu.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "placement/demotion.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// Elements of the first units that have states.
std::uint64_t elements_of(const Plan& plan, std::size_t units) {
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < units; ++u)
    sum += plan.units[u].frozen ? 0 : plan.layouts[u].flat_count;
  return sum;
}

// The first units whose elements are no more than the share of the GPU.
std::size_t units_asked(const Plan& plan) {
  const auto all = static_cast<double>(elements_of(plan, plan.units.size()));
  const double share = (1 - plan.config.zero.offload_optimizer.ratio) * all * (1 + 1e-9);
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    sum += plan.units[u].frozen ? 0 : plan.layouts[u].flat_count;
    if (static_cast<double>(sum) > share) return u;
  }
  return plan.units.size();
}

std::string percent(const Plan& plan, std::size_t units) {
  const auto all = static_cast<double>(elements_of(plan, plan.units.size()));
  const auto some = static_cast<double>(elements_of(plan, units));
  return std::to_string(std::lround(100 * some / all)) + " %";
}

std::string why_none(const Plan& plan) {
  if (!plan.device.gpu) return "there is no GPU";
  if (!plan.device.has_update_kernels) return "this build has no kernels for updates on this GPU";
  return elements_of(plan, units_asked(plan)) == 0
             ? "the share of the GPU is smaller than the first unit"
             : "";
}

// Units that have states.
std::ptrdiff_t trained(const Plan& plan, std::size_t units) {
  const auto begin = plan.units.begin();
  return std::count_if(begin, begin + static_cast<std::ptrdiff_t>(units),
                       [](const UnitPlacement& unit) { return !unit.frozen; });
}

}  // namespace

void keep_on_gpu(UnitPlacement& unit) {
  unit.weights = unit.gradients = unit.states = Tier::device;
  unit.gradients_use_slots = false;
}

bool wants_states_on_gpu(const Plan& plan) {
  const config::OffloadConfig& asked = plan.config.zero.offload_optimizer;
  return asked.device == config::OffloadConfig::Device::cpu && asked.ratio < 1;
}

std::size_t most_on_gpu(const Plan& plan, const TryUnitsOnGpu& attempt) {
  if (!why_none(plan).empty()) return 0;
  std::size_t most = 0;
  std::size_t low = 1;
  std::size_t high = units_asked(plan);
  while (low <= high) {
    const std::size_t middle = (low + high) / 2;
    const UnitsOnGpu found = attempt(middle);
    if (found == UnitsOnGpu::fit) most = middle;
    if (found == UnitsOnGpu::too_many) {
      high = middle - 1;
    } else {
      low = middle + 1;
    }
  }
  return most;
}

bool leaves_the_rest(const Spread& with, const Spread& without, std::size_t on_gpu) {
  for (std::size_t u = 0; u < with.placed.size(); ++u) {
    const UnitPlacement& unit = with.placed[u];
    const UnitPlacement& before = without.placed[u];
    if (with.leaving[u].inputs != without.leaving[u].inputs) return false;
    if (before.activations_saved && !unit.activations_saved) return false;
    if (u < on_gpu && !unit.frozen) {
      if (!device_has_all_of(unit)) return false;
      continue;
    }
    if (with.leaving[u].weights != without.leaving[u].weights ||
        with.leaving[u].gradients != without.leaving[u].gradients ||
        (before.gathered_until_backward && !unit.gathered_until_backward))
      return false;
  }
  return true;
}

bool has_kept_blocks(const Plan& plan, const StepModel& model, const Overlap& overlap) {
  const DeviceTransient transient = model.peak(plan.units, overlap);
  const UpdateRing& ring = plan.rings.update;
  const std::uint64_t tiles =
      static_cast<std::uint64_t>(ring.device_tiles) * offload::pool_bytes(ring.device_tile_bytes);
  return home_bytes(plan, Tier::device) + transient.total() + tiles +
             update_flags_bytes(plan).device + most_kept_bytes(plan, transient.workspace_bytes) <=
         *plan.budget.device_bytes;
}

void note_states_on_gpu(Plan& plan, std::size_t on_gpu) {
  if (const std::string why = why_none(plan); !why.empty()) {
    plan.choices.push_back("ratio: unused, because " + why);
    return;
  }
  const std::size_t asked = units_asked(plan);
  std::string line = "ratio: the GPU keeps and updates the states of " +
                     std::to_string(trained(plan, on_gpu)) + " of " +
                     std::to_string(trained(plan, plan.units.size())) + " units, " +
                     percent(plan, on_gpu) + " of the parameters";
  if (on_gpu < asked)
    line += "; " + percent(plan, asked) + " were asked for, but the memory has no more room";
  plan.choices.push_back(line);
}

void note_updates_on_cores(Plan& plan) {
  const bool has_kernels = plan.device.has_update_kernels;
  std::size_t units = 0, without_weights = 0;
  for (const UnitPlacement& unit : plan.units) {
    if (unit.frozen || !states_copied_to_tile(unit) || device_has_all_of(unit)) continue;
    ++units;
    without_weights += unit.weights == Tier::device ? 0 : 1;
  }
  if (units == 0) return;
  std::string why = "this build has no kernels for this GPU";
  if (has_kernels && without_weights > 0)
    why =
        "the weights are not on the GPU. With offload_optimizer \"cpu\" the states are in host "
        "memory, without copies; without offload_param all is on the GPU";
  if (has_kernels && without_weights == 0)
    why = "the gradients of " + std::to_string(units) + " of " +
          std::to_string(trained(plan, plan.units.size())) +
          " units have no room on the GPU. With more device_bytes they are there";
  plan.choices.push_back(
      "updates of states on the GPU: on the cores, with copies there and back, because " + why);
}

}  // namespace sluice::plan
