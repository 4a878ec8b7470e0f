#pragma once
// The planner: makes a plan from the configuration, the model and the machine, or refuses the run
// with a table and the smallest changes that would fit. Thread-safe: free functions without state.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/rates.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::plan {

// Largest number of micro-batches in one step. Each unit's input has a place for every micro-batch
// of a pass.
inline constexpr std::int64_t kMaxMicroBatches = 10'000;

// The units of a training loop of the user's own, whose model no file describes. Each micro-batch
// goes forward through the calls, then backward in reverse order. A call lists every layout that it
// gathers or whose gradient it adds to, so no unit borrows.
struct OwnModel {
  std::vector<zero::UnitLayout> layouts;
  std::vector<std::vector<std::size_t>> calls;  // layouts that are used together, in forward order
  // By layout: calls whose backward adds to its gradient. Empty: all calls that use it.
  std::vector<int> backwards;
  // Device memory that the loop computes with. Empty: unknown; the loop may use whatever homes and
  // buffers leave of the budget.
  std::optional<std::uint64_t> activation_bytes;
};

// Makes the plan of a run. Throws DoesNotFit when a budget is too small, or when the machine has
// too little memory, locked memory or disk. Its message is the table, what is short by how much,
// and changes that would fit: at least two where they exist, each tried by planning again. With
// "strict", a spill or downgrade is DoesNotFit too.
// Where a budget cannot hold everything, bytes with the least traffic per byte held leave first.
// With measured rates, the planner also tries other orders and picks the fastest predicted.
Plan make_plan(const config::TrainConfig& config, const config::ModelConfig& model,
               Placement placement, const MachineFacts& machine, const FindRates& find_rates = {});
// Makes the plan of a loop of the user's own. Its activations stay on the device, and its gradients
// wait until the step. Throws DoesNotFit as above, and InvalidArgument when `model` has no call.
Plan make_plan(const config::TrainConfig& config, const OwnModel& model, Placement placement,
               const MachineFacts& machine);

// make_plan() without rates and without reasons: returns nullopt instead of throwing DoesNotFit.
std::optional<Plan> try_plan(const config::TrainConfig& config, const config::ModelConfig& model,
                             Placement placement, const MachineFacts& machine);
// "n_layer" of a model file goes so far.
inline constexpr std::int64_t kMostLayers = 10'000;
// Returns the plan with the most blocks of the model's shape that fit, up to kMostLayers; nullopt
// when one block does not fit.
std::optional<Plan> largest_plan(const config::TrainConfig& config, config::ModelConfig model,
                                 Placement placement, const MachineFacts& machine,
                                 const FindRates& find_rates = {});

}  // namespace sluice::plan
