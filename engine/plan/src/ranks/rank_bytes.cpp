// Bytes that one rank holds, and bytes that a step moves. docs/memory_model.md has the formulas.

#include "sluice/base/bytes.hpp"
#include "sluice/plan/rank_plan.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// Gathered units, and gradients of units: the one that computes, and one on its way.
constexpr std::uint64_t kUnitsAtOnce = 2;

bool states_are_away(const RankShape& shape) {
  return shape.states != Tier::device;
}

// Bytes of an element's states in memory: the upper half of a split master is the weight.
std::uint64_t state_memory_bytes(const RankShape& shape) {
  return shape.format.element_bytes() - (shape.format.is_split() ? shape.weight_bytes : 0);
}

std::uint64_t input_bytes(const RankShape& shape) {
  return (shape.layers + 1) * shape.micro_batches * shape.micro_batch * shape.sequence *
         shape.width * shape.weight_bytes;
}

void add(RankBytes& bytes, Tier tier, std::uint64_t count) {
  if (tier == Tier::device) bytes.device_bytes += count;
  if (tier == Tier::host) bytes.host_bytes += count;
  if (tier == Tier::nvme) bytes.nvme_bytes += count;
}

}  // namespace

std::uint64_t state_bytes(const RankShape& shape) {
  return shape.states == Tier::nvme ? shape.format.element_bytes() : state_memory_bytes(shape);
}

RankBytes rank_bytes(const RankShape& shape, std::uint64_t ranks) {
  const std::uint64_t all = shape.parameters;
  const std::uint64_t shard = ceil_div(all, ranks);
  const bool away = states_are_away(shape);
  RankBytes bytes;
  bytes.weights =
      shape.weight_bytes * (shape.stage == config::kStageOfShardedWeights ? shard : all);
  // Without offload an update finds its gradients on the device; with it, in host memory. Stages 0
  // and 1 divide gradients and states as stage 2 does (docs/decisions/0024-ranks-of-train.md).
  if (!away && shape.waits_for_norm) bytes.device_gradients = shape.gradient_bytes * shard;
  if (away && shape.waits_for_norm) bytes.host_gradients = shape.gradient_bytes * shard;
  bytes.states = state_bytes(shape) * shard;
  const std::uint64_t gathered =
      shape.stage == config::kStageOfShardedWeights ? shape.weight_bytes : 0;
  bytes.gathered = kUnitsAtOnce * (shape.gradient_bytes + gathered) * shape.largest_unit;
  bytes.inputs = input_bytes(shape);
  add(bytes, shape.weights, bytes.weights);
  add(bytes, Tier::device, bytes.device_gradients + bytes.gathered);
  add(bytes, shape.inputs, bytes.inputs);
  add(bytes, Tier::host, bytes.host_gradients);
  add(bytes, shape.states, bytes.states * (shape.states == Tier::nvme ? shape.slots : 1));
  return bytes;
}

RankTraffic rank_traffic(const RankShape& shape) {
  const auto all = static_cast<double>(shape.parameters);
  const auto element = static_cast<double>(shape.weight_bytes);
  const auto gradient = static_cast<double>(shape.gradient_bytes);
  // Stage 3 gathers weights for forward and for backward; the others gather what was updated.
  const double gathers = shape.stage == config::kStageOfShardedWeights ? 2 : 1;
  RankTraffic traffic;
  traffic.gathered_bytes = gathers * element * all;
  traffic.reduced_bytes = static_cast<double>(shape.wire_bytes) * all;
  traffic.updated = all;
  if (shape.weights != Tier::device) traffic.copy_bytes += gathers * element * all;
  if (states_are_away(shape)) {
    traffic.copy_bytes += gradient * all;
    if (shape.weights == Tier::device) traffic.copy_bytes += element * all;  // updated weights
  }
  // Home in forward, back in backward.
  if (shape.inputs != Tier::device)
    traffic.input_bytes += 2 * static_cast<double>(input_bytes(shape));
  if (shape.states == Tier::nvme) {
    traffic.written_bytes += static_cast<double>(state_bytes(shape)) * all;
    // An update finds the half of a split master that the weights are in their home.
    const bool reads_weight = shape.weights == Tier::nvme;
    traffic.read_bytes +=
        static_cast<double>(reads_weight ? state_bytes(shape) : state_memory_bytes(shape)) * all;
  }
  if (shape.weights == Tier::nvme) {
    traffic.read_bytes += gathers * element * all;
    traffic.written_bytes += element * all;
  }
  return traffic;
}

double rank_flops(const RankShape& shape) {
  const double per_element = shape.recompute ? 8 : 6;
  const auto tokens = static_cast<double>(shape.micro_batches * shape.micro_batch * shape.sequence);
  // Scores and weighted sums of attention: 4 * sequence * width a layer and token in forward, where
  // a parameter takes 2.
  const double attention = 2.0 * static_cast<double>(shape.layers) *
                           static_cast<double>(shape.sequence) * static_cast<double>(shape.width);
  return per_element * tokens * (static_cast<double>(shape.parameters) + attention);
}

}  // namespace sluice::plan
