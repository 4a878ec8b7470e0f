#pragma once
// What a step holds, by formula: the transient bytes of each stage on the device, and the rings of
// host tiles. Everything counts in pool_bytes, as the pools do.

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/config/model_config.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::plan {

// Scalars, losses, layer-norm statistics of the head and the like: small tensors that come and go.
inline constexpr std::uint64_t kSmallTensorsBytes = 1U << 20U;

// Unit inputs on their way: with overlap, the next micro-batch's is fetched while this one
// computes, and two outputs may still be leaving.
struct InputsInFlight {
  int gets = 2;
  int puts = 2;
};
InputsInFlight inputs_in_flight(bool overlap);

// How much of the overlap a plan affords; the planner goes down this ladder until the plan fits.
struct Overlap {
  int prefetch_units = 1;
  int gradients_in_flight = 2;
};

// Elements of a rank's shard of a unit; bytes that one part of its states takes in a pool.
std::uint64_t shard_count(const Plan& plan, std::size_t unit);
std::uint64_t part_bytes(const Plan& plan, std::size_t unit, std::size_t part);

// Bytes of one unit input (micro-batch x sequence x n_embd); a pool takes pool_bytes() of them.
std::uint64_t hidden_bytes(const config::ModelConfig& model, std::uint64_t micro_batch,
                           DType dtype);

// The stages of one pass forward and backward: of a step, or with an OwnModel of a micro-batch.
std::vector<std::vector<std::size_t>> pass_stages(const Plan& plan);

// By unit, the stages that use it, ascending.
std::vector<std::vector<std::size_t>> stages_by_unit(
    const std::vector<std::vector<std::size_t>>& stages, std::size_t unit_count);

// The parts that are on the device at one stage, without the bytes that have their home there.
struct DeviceTransient {
  std::uint64_t gathered_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t input_bytes = 0;
  std::uint64_t activation_bytes = 0;  // kept for the backward pass
  std::uint64_t gap_bytes = 0;         // between blocks, where memory is one block that is cut up
  std::uint64_t total() const {
    return gathered_bytes + gradient_bytes + workspace_bytes + input_bytes + activation_bytes +
           gap_bytes + kSmallTensorsBytes;
  }
};

// The stages of a step, and what each holds whatever the placement. A plan asks about many
// placements, so what does not depend on them is computed once, and a question costs one pass over
// the stages. Thread-compatible: constant after construction.
class StepModel {
 public:
  explicit StepModel(const Plan& plan);

  // Each stage of a step: gathered units (those that are kept since the forward pass included),
  // gradients, workspace, and unit inputs.
  std::vector<DeviceTransient> by_stage(const std::vector<UnitPlacement>& units,
                                        const Overlap& overlap) const;
  // The first of those with the largest total.
  DeviceTransient peak(const std::vector<UnitPlacement>& units, const Overlap& overlap) const;

  // Stages [begin, end).
  struct Span {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // Bytes that are held at some stages and would not be there otherwise.
  struct Kept {
    Span span;
    std::uint64_t size_bytes = 0;
  };
  // By keeping a unit's weights from forward to backward: between its uses, without the stages that
  // fetch it ahead.
  std::vector<Kept> kept_weights(std::size_t unit, const Overlap& overlap) const;
  // By keeping its activations.
  std::vector<Kept> kept_activations(std::size_t unit) const;
  // By how much a stage's total grows with bytes that are kept there, at most: gaps grow with them.
  std::uint64_t with_gaps(std::uint64_t kept_bytes) const;

 private:
  std::uint64_t gathered_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                            int units_ahead) const;
  std::uint64_t gradients_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                             int in_flight) const;

  std::vector<std::vector<std::size_t>> stages_;
  std::vector<std::vector<std::size_t>> uses_;     // stages_by_unit
  std::vector<std::uint64_t> full_bytes_;          // by unit: gathered, or its flat gradient
  std::vector<models::UnitWorkspace> workspaces_;  // by unit
  std::vector<DeviceTransient> fixed_;             // by stage: workspace and inputs
  std::uint64_t micro_batches_;
  std::size_t last_unit_;
  std::size_t first_backward_;  // stage
  bool one_rank_;
  bool one_block_;  // the device's memory
};

}  // namespace sluice::plan
