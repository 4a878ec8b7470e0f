// Shapes: from a configuration and a model, and models from a number of parameters.

#include <algorithm>
#include <cmath>

#include "sluice/base/dtype.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/rank_plan.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

Tier tier_of(const config::OffloadConfig& offload) {
  using Device = config::OffloadConfig::Device;
  if (offload.device == Device::nvme) return Tier::nvme;
  return offload.device == Device::cpu ? Tier::host : Tier::device;
}

}  // namespace

RankShape rank_shape(const config::TrainConfig& config, const config::ModelConfig& model) {
  RankShape shape;
  for (const zero::UnitLayout& unit : models::gpt2_units(model, 1)) {
    shape.parameters += unit.param_count;
    shape.largest_unit = std::max(shape.largest_unit, unit.param_count);
  }
  shape.layers = static_cast<std::uint64_t>(model.n_layer);
  shape.width = static_cast<std::uint64_t>(model.n_embd);
  shape.sequence = static_cast<std::uint64_t>(model.n_positions);
  shape.micro_batch = static_cast<std::uint64_t>(config.micro_batch_size);
  shape.micro_batches = static_cast<std::uint64_t>(config.gradient_accumulation_steps);
  shape.stage = config.zero.stage;
  shape.weights = tier_of(config.zero.offload_param);
  shape.states = tier_of(config.zero.offload_optimizer);
  if (config.sluice.activations == config::Activations::offload) shape.inputs = Tier::host;
  shape.weight_bytes = size_of(config.compute_dtype());
  shape.gradient_bytes = size_of(config.gradient_dtype());
  shape.wire_bytes = size_of(config.wire_dtype());
  shape.slots = config.sluice.durability == Durability::none ? 1 : 2;
  shape.format = models::state_format(config);
  shape.waits_for_norm = config.updates_need_all_gradients();
  shape.recompute = config.sluice.activations != config::Activations::keep;
  shape.overlap = config.sluice.overlap;
  return shape;
}

config::ModelConfig model_of_size(std::uint64_t parameters) {
  constexpr std::uint64_t kLeast = 10'000'000;
  constexpr std::int64_t kHead = 128;
  SLUICE_CHECK(parameters >= kLeast && parameters <= 1'000'000'000'000'000,
               "a model of " + format_count(parameters) +
                   " parameters: expected 10 million to 1,000,000 billion");
  config::ModelConfig model;
  model.n_positions = 2048;
  model.tie_word_embeddings = true;
  const auto size = static_cast<double>(parameters);
  // A block has some 12 width^2 parameters. With width = 128 layers, all have 12 * 128^2 layers^3.
  const double depth = std::cbrt(size / (12.0 * kHead * kHead));
  model.n_head = std::max<std::int64_t>(1, std::llround(depth));
  model.n_embd = kHead * model.n_head;
  const auto width = static_cast<double>(model.n_embd);
  const double embedding = width * static_cast<double>(model.vocab_size + model.n_positions);
  model.n_layer =
      std::max<std::int64_t>(1, std::llround((size - embedding) / (12.0 * width * width)));
  return model;
}

}  // namespace sluice::plan
