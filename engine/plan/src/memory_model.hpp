#pragma once
// What a step holds, by formula: the transient bytes of each stage on the device, and the rings of
// host tiles. Everything counts in pool_bytes, as the pools do.

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/config/model_config.hpp"
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

// Bytes of one unit input (micro-batch x sequence x n_embd).
std::uint64_t hidden_bytes(const config::ModelConfig& model, std::uint64_t micro_batch,
                           DType dtype);

// The largest sum over the stages of a step of: gathered units, gradients, workspace and unit
// inputs on the device, without the bytes that have their home there. `transient` gets the parts at
// that stage, for the table.
struct DeviceTransient {
  std::uint64_t gathered_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t input_bytes = 0;
  std::uint64_t total() const {
    return gathered_bytes + gradient_bytes + workspace_bytes + input_bytes + kSmallTensorsBytes;
  }
};
DeviceTransient device_transient(const Plan& plan, const Overlap& overlap);

}  // namespace sluice::plan
