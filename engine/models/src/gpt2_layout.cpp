#include "sluice/models/gpt2_layout.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "sluice/models/philox.hpp"

namespace sluice::models {
namespace {

zero::UnitLayout embedding_unit(const config::ModelConfig& model) {
  zero::UnitLayout unit;
  unit.name = "embedding";
  add_param(unit, "transformer.wte.weight", {model.vocab_size, model.n_embd});
  add_param(unit, "transformer.wpe.weight", {model.n_positions, model.n_embd});
  return unit;
}

zero::UnitLayout block_unit(const config::ModelConfig& model, std::int64_t index) {
  const std::int64_t width = model.n_embd;
  const std::int64_t inner = model.inner_size();
  const std::string prefix = "transformer.h." + std::to_string(index) + ".";
  zero::UnitLayout unit;
  unit.name = "h." + std::to_string(index);
  add_param(unit, prefix + "ln_1.weight", {width});
  add_param(unit, prefix + "ln_1.bias", {width});
  add_param(unit, prefix + "attn.c_attn.weight", {width, 3 * width});
  add_param(unit, prefix + "attn.c_attn.bias", {3 * width});
  add_param(unit, prefix + "attn.c_proj.weight", {width, width});
  add_param(unit, prefix + "attn.c_proj.bias", {width});
  add_param(unit, prefix + "ln_2.weight", {width});
  add_param(unit, prefix + "ln_2.bias", {width});
  add_param(unit, prefix + "mlp.c_fc.weight", {width, inner});
  add_param(unit, prefix + "mlp.c_fc.bias", {inner});
  add_param(unit, prefix + "mlp.c_proj.weight", {inner, width});
  add_param(unit, prefix + "mlp.c_proj.bias", {width});
  return unit;
}

zero::UnitLayout head_unit(const config::ModelConfig& model) {
  zero::UnitLayout unit;
  unit.name = "head";
  add_param(unit, "transformer.ln_f.weight", {model.n_embd});
  add_param(unit, "transformer.ln_f.bias", {model.n_embd});
  if (model.tie_word_embeddings) {
    unit.borrowed.push_back({0, 0});
  } else {
    add_param(unit, "lm_head.weight", {model.vocab_size, model.n_embd});
  }
  return unit;
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return hash;
}

// Four standard normal numbers from one block (Box and Muller 1958). Each uses 24 bits, so that the
// logarithm's argument in (0, 1] and the angle's fraction are exact floats.
std::array<float, 4> normals(const PhiloxBlock& block) {
  constexpr float kUnit = 0x1p-24F;
  std::array<float, 4> values{};
  for (std::size_t pair = 0; pair < 2; ++pair) {
    const float u = static_cast<float>((block[2 * pair] >> 8U) + 1U) * kUnit;
    const float v = static_cast<float>(block[2 * pair + 1] >> 8U) * kUnit;
    const float radius = std::sqrt(-2.0F * std::log(u));
    const float angle = 2.0F * std::numbers::pi_v<float> * v;
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  return values;
}

void fill_normal(const zero::ParamLayout& param, std::uint64_t seed, float deviation,
                 std::uint64_t begin, std::span<float> values) {
  const PhiloxStream stream =
      philox_stream(PhiloxDomain::initial_values, seed, {fnv1a(param.name), 0, 0, 0});
  std::uint64_t i = 0;
  while (i < values.size()) {
    const std::uint64_t index = begin + i;
    const std::array<float, 4> four = normals(stream.block(index / 4));
    for (std::size_t lane = index % 4; lane < 4 && i < values.size(); ++lane, ++i) {
      values[i] = deviation * four[lane];
    }
  }
}

void fill_param(const config::ModelConfig& model, const zero::ParamLayout& param,
                std::uint64_t seed, std::uint64_t begin, std::span<float> values) {
  const std::string_view name = param.name;
  if (param.shape.size() == 1) {
    // Vectors are biases, except the scales of the layer norms.
    std::fill(values.begin(), values.end(), name.ends_with(".weight") ? 1.0F : 0.0F);
    return;
  }
  double deviation = model.initializer_range;
  if (name.ends_with(".c_proj.weight")) {
    // GPT-2 (Radford et al. 2019), section 2.3: 1 / sqrt(N) for N residual layers; a block has two.
    deviation /= std::sqrt(2.0 * static_cast<double>(model.n_layer));
  }
  fill_normal(param, seed, static_cast<float>(deviation), begin, values);
}

}  // namespace

std::vector<zero::UnitLayout> gpt2_units(const config::ModelConfig& model, int world_size) {
  std::vector<zero::UnitLayout> units;
  units.push_back(embedding_unit(model));
  for (std::int64_t i = 0; i < model.n_layer; ++i) units.push_back(block_unit(model, i));
  units.push_back(head_unit(model));
  for (zero::UnitLayout& unit : units) finish_layout(unit, world_size);
  return units;
}

void fill_initial(const config::ModelConfig& model, const zero::UnitLayout& unit,
                  std::uint64_t seed, std::uint64_t offset_count, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0F);
  for (const zero::ParamLayout& param : unit.params) {
    const zero::ShardRange part = zero::part_in(param, offset_count, values.size());
    if (part.count == 0) continue;
    fill_param(model, param, seed, part.begin - param.offset_count,
               values.subspan(part.begin - offset_count, part.count));
  }
}

}  // namespace sluice::models
