#pragma once
// The device memory that a step holds, by formula: the transient bytes of each stage. All sizes are
// pool_bytes(), as the pools count them. Not here: bytes that have their home on the device
// (home_bytes.hpp).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Room for small tensors that come and go: scalars, losses, layer-norm statistics of the head.
inline constexpr std::uint64_t kSmallTensorsBytes = 1U << 20U;

// How far a plan overlaps transfers with computing.
struct Overlap {
  int prefetch_units = 1;
  int gradients_in_flight = 2;
};

// Transient bytes on the device at one stage. Excludes bytes that have their home there.
struct DeviceTransient {
  std::uint64_t gathered_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t input_bytes = 0;
  std::uint64_t activation_bytes = 0;  // saved for the backward pass
  std::uint64_t gap_bytes = 0;         // between blocks, on a GPU
  std::uint64_t total_without_gaps() const {
    return gathered_bytes + gradient_bytes + workspace_bytes + input_bytes + activation_bytes +
           kSmallTensorsBytes;
  }
  std::uint64_t total() const { return total_without_gaps() + gap_bytes; }
};

// The stages of a step and the bytes that each holds. The planner asks about many placements, so
// the constructor computes everything that is independent of the placement; a query then costs one
// pass over the stages. Thread-compatible: constant after construction.
class StepModel {
 public:
  explicit StepModel(const Plan& plan);

  // The transient bytes of each stage, in order. Includes units that stay gathered and activations
  // that are saved.
  std::vector<DeviceTransient> by_stage(const std::vector<UnitPlacement>& units,
                                        const Overlap& overlap) const;
  // The stage with the largest total; the first of them where several are equal.
  DeviceTransient peak(const std::vector<UnitPlacement>& units, const Overlap& overlap) const;

  // Stages [begin, end).
  struct Span {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // Bytes that stay on the device during a span of stages.
  struct Retained {
    Span span;
    std::uint64_t size_bytes = 0;
  };
  // The additional bytes when a unit stays gathered until backward: between its uses, without the
  // stages that gather it ahead anyway.
  std::vector<Retained> retained_weights(std::size_t unit, const Overlap& overlap) const;
  // The additional bytes when a unit's activations are saved.
  std::vector<Retained> saved_activations(std::size_t unit) const;
  // The most bytes that `room_bytes` hold beside the gaps between them.
  std::uint64_t without_gaps(std::uint64_t room_bytes) const;

 private:
  std::uint64_t gathered_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                            int units_ahead) const;
  const std::vector<std::size_t>& ends_of_ahead(int units_ahead) const;
  std::uint64_t gaps_between(std::uint64_t transient_bytes) const;
  std::uint64_t gradients_at(const std::vector<UnitPlacement>& units, std::size_t stage,
                             int in_flight) const;

  std::vector<std::vector<std::size_t>> stages_;
  std::vector<std::vector<std::size_t>> uses_;  // stages_by_unit
  // By units gathered ahead (0 and 1), then by stage.
  std::vector<std::vector<std::size_t>> ends_of_ahead_;
  std::vector<std::uint64_t> full_bytes_;           // by unit: gathered
  std::vector<std::uint64_t> full_gradient_bytes_;  // by unit: its flat gradient
  std::vector<models::UnitWorkspace> workspaces_;   // by unit
  std::vector<DeviceTransient> fixed_;              // by stage: workspace and inputs
  std::uint64_t saved_micro_batches_;
  bool more_in_last_pass_;
  std::size_t last_unit_;
  std::size_t first_backward_;  // stage
  bool one_rank_;
  bool in_place_;             // weights at home on the device are used there
  bool has_gaps_;             // a GPU's memory
  std::uint64_t page_bytes_;  // of a GPU's memory that is mapped in pages; 0: one block
};

}  // namespace sluice::plan
