#include "sluice/models/gpt2_layout.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace sluice::models {
namespace {

config::ModelConfig tiny() {
  config::ModelConfig model;
  model.n_layer = 2;
  model.n_head = 2;
  model.n_embd = 16;
  model.n_positions = 24;
  model.vocab_size = 50;
  return model;
}

std::vector<std::string> names_and_shapes(const zero::UnitLayout& unit) {
  std::vector<std::string> lines;
  for (const zero::ParamLayout& param : unit.params) {
    std::string line = param.name;
    for (const std::int64_t dimension : param.shape) line += " " + std::to_string(dimension);
    lines.push_back(line);
  }
  return lines;
}

TEST(Gpt2Units, NamesAndShapesAreThoseOfHuggingFace) {
  const auto units = gpt2_units(tiny(), 1);
  ASSERT_EQ(units.size(), 4U);
  EXPECT_EQ(units[0].name, "embedding");
  EXPECT_EQ(names_and_shapes(units[0]), (std::vector<std::string>{"transformer.wte.weight 50 16",
                                                                  "transformer.wpe.weight 24 16"}));
  EXPECT_EQ(units[2].name, "h.1");
  EXPECT_EQ(names_and_shapes(units[2]),
            (std::vector<std::string>{
                "transformer.h.1.ln_1.weight 16", "transformer.h.1.ln_1.bias 16",
                "transformer.h.1.attn.c_attn.weight 16 48", "transformer.h.1.attn.c_attn.bias 48",
                "transformer.h.1.attn.c_proj.weight 16 16", "transformer.h.1.attn.c_proj.bias 16",
                "transformer.h.1.ln_2.weight 16", "transformer.h.1.ln_2.bias 16",
                "transformer.h.1.mlp.c_fc.weight 16 64", "transformer.h.1.mlp.c_fc.bias 64",
                "transformer.h.1.mlp.c_proj.weight 64 16", "transformer.h.1.mlp.c_proj.bias 16"}));
  EXPECT_EQ(units[3].name, "head");
  EXPECT_EQ(names_and_shapes(units[3]),
            (std::vector<std::string>{"transformer.ln_f.weight 16", "transformer.ln_f.bias 16"}));
}

TEST(Gpt2Units, ATiedHeadBorrowsTheTokenEmbedding) {
  const auto units = gpt2_units(tiny(), 1);
  ASSERT_EQ(units.back().borrowed.size(), 1U);
  EXPECT_EQ(units.back().borrowed[0].unit, 0U);
  EXPECT_EQ(units.back().borrowed[0].param, 0U);
}

TEST(Gpt2Units, AnUntiedHeadHasItsOwnWeight) {
  config::ModelConfig model = tiny();
  model.tie_word_embeddings = false;
  const auto units = gpt2_units(model, 1);
  EXPECT_TRUE(units.back().borrowed.empty());
  EXPECT_EQ(names_and_shapes(units.back()).back(), "lm_head.weight 50 16");
}

// The number of elements of all parameters, counted by layer. A tied head counts once.
std::uint64_t parameter_count(const config::ModelConfig& model) {
  const auto layers = static_cast<std::uint64_t>(model.n_layer);
  const auto e = static_cast<std::uint64_t>(model.n_embd);
  const auto inner = static_cast<std::uint64_t>(model.inner_size());
  const auto positions = static_cast<std::uint64_t>(model.n_positions);
  const auto vocabulary = static_cast<std::uint64_t>(model.vocab_size);
  const std::uint64_t norm = 2 * e;                                   // weight and bias
  const std::uint64_t attention = (e * 3 * e + 3 * e) + (e * e + e);  // q, k, v; output
  const std::uint64_t feed_forward = (e * inner + inner) + (inner * e + e);
  const std::uint64_t head = model.tie_word_embeddings ? 0 : vocabulary * e;
  return vocabulary * e + positions * e + layers * (2 * norm + attention + feed_forward) + norm +
         head;
}

TEST(Gpt2Units, OfAPublishedModelHoldItsWellKnownNumberOfParameters) {
  std::uint64_t count = 0;
  for (const auto& unit : gpt2_units(config::ModelConfig(), 1)) count += unit.param_count;
  EXPECT_EQ(count, 124'439'808U);
}

TEST(Gpt2Units, HoldEveryParameterOfTheModelOnce) {
  for (const bool tied : {true, false}) {
    config::ModelConfig model = tiny();
    model.tie_word_embeddings = tied;
    model.n_inner = 40;
    std::uint64_t count = 0;
    for (const auto& unit : gpt2_units(model, 3)) {
      EXPECT_EQ(unit.flat_count % (3 * zero::kParamAlignment), 0U) << unit.name;
      count += unit.param_count;
    }
    EXPECT_EQ(count, parameter_count(model));
  }
}

std::vector<float> initial(const config::ModelConfig& model, const zero::UnitLayout& unit,
                           std::uint64_t seed) {
  std::vector<float> values(unit.flat_count, -7.0F);
  fill_initial(model, unit, seed, 0, values);
  return values;
}

TEST(FillInitial, DoesNotDependOnWhoFillsWhichPart) {
  const config::ModelConfig model = tiny();
  for (const auto& unit : gpt2_units(model, 1)) {
    const std::vector<float> whole = initial(model, unit, 42);
    for (const std::size_t part_count : {1U, 7U, 33U, 1000U}) {
      std::vector<float> parts(unit.flat_count, -7.0F);
      for (std::size_t begin = 0; begin < parts.size(); begin += part_count) {
        const std::size_t count = std::min(part_count, parts.size() - begin);
        fill_initial(model, unit, 42, begin, std::span(parts).subspan(begin, count));
      }
      ASSERT_EQ(parts, whole) << unit.name << " in parts of " << part_count;
    }
  }
}

TEST(FillInitial, BiasesPaddingAndNormsAreExact) {
  const config::ModelConfig model = tiny();
  const auto unit = gpt2_units(model, 5)[1];
  const std::vector<float> values = initial(model, unit, 42);
  std::vector<bool> is_parameter(values.size(), false);
  for (const auto& param : unit.params) {
    for (std::uint64_t i = 0; i < param.count; ++i) {
      is_parameter[param.offset_count + i] = true;
      if (param.shape.size() == 2) continue;
      const float expected =
          param.name.find("ln_") != std::string::npos && param.name.ends_with(".weight") ? 1.0F
                                                                                         : 0.0F;
      ASSERT_EQ(values[param.offset_count + i], expected) << param.name;
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_parameter[i]) {
      ASSERT_EQ(values[i], 0.0F) << "padding at " << i;
    }
  }
}

struct Moments {
  double mean = 0;
  double deviation = 0;
  double fourth = 0;  // E x^4 / deviation^4: 3 for a normal distribution
};
Moments moments(std::span<const float> values) {
  const auto n = static_cast<double>(values.size());
  Moments m;
  for (const float x : values) m.mean += x / n;
  double square = 0;
  for (const float x : values) square += std::pow(x - m.mean, 2) / n;
  for (const float x : values) m.fourth += std::pow(x - m.mean, 4) / n;
  m.deviation = std::sqrt(square);
  m.fourth /= square * square;
  return m;
}

TEST(FillInitial, WeightsAreNormalAndProjectionsAreScaledByDepth) {
  config::ModelConfig model = tiny();
  model.n_layer = 8;
  model.n_embd = 128;
  model.initializer_range = 0.05;
  const auto unit = gpt2_units(model, 1)[3];
  const std::vector<float> values = initial(model, unit, 9);
  for (const auto& param : unit.params) {
    if (param.shape.size() != 2) continue;
    const Moments m = moments(std::span(values).subspan(param.offset_count, param.count));
    const double expected = param.name.find("c_proj") != std::string::npos ? 0.05 / 4 : 0.05;
    const double n = static_cast<double>(param.count);
    // Five standard errors: of the mean, of the deviation (1/sqrt(2n)), of the kurtosis
    // (sqrt(24/n)).
    EXPECT_NEAR(m.mean, 0, 5 * expected / std::sqrt(n)) << param.name;
    EXPECT_NEAR(m.deviation / expected, 1, 5 / std::sqrt(2 * n)) << param.name;
    EXPECT_NEAR(m.fourth, 3, 5 * std::sqrt(24 / n)) << param.name;
  }
}

TEST(FillInitial, SeedAndNameChangeTheNumbers) {
  const config::ModelConfig model = tiny();
  const auto units = gpt2_units(model, 1);
  const auto weight = units[1].params[2].offset_count;
  const auto here = initial(model, units[1], 1);
  EXPECT_NE(here[weight], initial(model, units[1], 2)[weight]);
  EXPECT_NE(here[weight], initial(model, units[2], 1)[weight]);
  EXPECT_EQ(here, initial(model, units[1], 1));
}

}  // namespace
}  // namespace sluice::models
