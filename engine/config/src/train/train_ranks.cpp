#include "train/train_ranks.hpp"

#include <string>

#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

// A key that one rank accepts, because it changes nothing there, and several ranks refuse.
struct Refusal {
  const char* path;
  const char* reason;
};

constexpr const char* kExactWeights =
    "weights are sent as they are, since quantized ones would train another model; remove it";
constexpr const char* kExactGradients =
    "gradients are not quantized; \"communication_data_type\": \"bf16\" or \"fp16\" makes them "
    "smaller on their way";

constexpr Refusal kRefusals[] = {
    {"zero_optimization.zero_quantized_weights", kExactWeights},
    {"zero_optimization.zero_quantized_nontrainable_weights", kExactWeights},
    {"zero_optimization.zero_quantized_gradients", kExactGradients},
    {"zero_optimization.zeropp_loco_param", kExactGradients},
};

// They say which units stay gathered from forward to backward.
constexpr const char* kGatheredUnits[] = {"zero_optimization.stage3_max_reuse_distance",
                                          "zero_optimization.stage3_param_persistence_threshold",
                                          "zero_optimization.stage3_model_persistence_threshold"};

// They say how gradients are summed over ranks.
constexpr const char* kReductionKeys[] = {"prescale_gradients", "gradient_predivide_factor",
                                          "gradient_allreduce_op", "communication_data_type"};

}  // namespace

ReductionConfig read_reduction(Checker& checker) {
  ReductionConfig reduction;
  checker.read("prescale_gradients", reduction.prescales);
  checker.read("gradient_predivide_factor", reduction.predivide_factor);
  std::string operation = "mean";
  checker.read("gradient_allreduce_op", operation);
  reduction.takes_sum = lower(operation) == "sum";
  std::string type;
  checker.read("communication_data_type", type);
  if (!type.empty()) reduction.wire_dtype = parse_dtype(lower(type));
  if (reduction.takes_sum && reduction.prescales)
    checker.add_note("prescale_gradients",
                     "no effect with gradient_allreduce_op \"sum\", as in DeepSpeed");
  if ((reduction.takes_sum || reduction.prescales) && reduction.predivide_factor != 1)
    checker.add_note(
        "gradient_predivide_factor",
        std::string("no effect with ") +
            (reduction.takes_sum ? "gradient_allreduce_op \"sum\"" : "prescale_gradients") +
            ", as in DeepSpeed");
  return reduction;
}

void check_ranks(Checker& checker, const ZeroConfig& zero, int world_size) {
  if (world_size == 1) {
    for (const char* path : kReductionKeys) {
      if (checker.has_other_value(path))
        checker.add_note(path, "an effect over ranks only, and this run has one");
    }
    return;
  }
  if (zero.stage == kStageOfShardedWeights &&
      zero.offload_param.device == OffloadConfig::Device::none) {
    for (const char* path : kGatheredUnits) {
      if (checker.has_other_value(path))
        checker.add_note(path,
                         "an effect only on units whose weights leave the device: a part of them "
                         "that is at home there is gathered before each use");
    }
  }
  const std::string ranks = "on " + std::to_string(world_size) + " ranks ";
  for (const auto& [path, reason] : kRefusals) {
    if (checker.has_other_value(path)) checker.add_problem(path, ranks + reason);
  }
}

}  // namespace sluice::config
