#include "sluice/models/param_groups.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "sluice/base/error.hpp"
#include "sluice/models/gpt2_layout.hpp"

namespace sluice::models {
namespace {

using config::GroupConfig;
using testing::HasSubstr;

std::vector<zero::UnitLayout> units() {
  config::ModelConfig model;
  model.n_layer = 12;
  model.n_embd = 64;
  model.n_head = 4;
  model.n_positions = 32;
  model.vocab_size = 250;
  return gpt2_units(model, 1);
}

config::TrainConfig config_with(std::vector<GroupConfig> entries, bool no_decay = false) {
  config::TrainConfig config;
  config.optimizer.lr = 1e-3;
  config.optimizer.weight_decay = 0.1;
  config.groups = {std::move(entries), no_decay};
  return config;
}

// The group of each parameter, found through the segments.
std::map<std::string, ParamGroup> groups_by_name(const ParamGroups& groups,
                                                 const std::vector<zero::UnitLayout>& units) {
  std::map<std::string, ParamGroup> by_name;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const zero::ParamLayout& param : units[u].params) {
      for (const GroupSegment& segment : groups.segments[u]) {
        const std::uint64_t first = param.offset_count;
        const std::uint64_t last = first + param.count - 1;
        const bool has_first = segment.begin <= first && first < segment.begin + segment.count;
        const bool has_last = segment.begin <= last && last < segment.begin + segment.count;
        EXPECT_EQ(has_first, has_last) << param.name << " is cut";
        if (has_first) by_name.emplace(param.name, groups.groups[segment.group]);
      }
    }
  }
  return by_name;
}

TEST(Matches, AreOfWholeNamesWithStarsAndQuestionMarks) {
  EXPECT_TRUE(matches("h.0.ln_1.bias", "*.bias"));
  EXPECT_TRUE(matches("h.0.ln_1.bias", "h.0.ln_1.bias"));
  EXPECT_TRUE(matches("h.0.ln_1.bias", "h.*.ln_?.*"));
  EXPECT_TRUE(matches("h.0.ln_1.bias", "*"));
  EXPECT_TRUE(matches("abcabd", "*ab?"));
  EXPECT_TRUE(matches("aXbXXc", "a*b*c**"));
  EXPECT_TRUE(matches("", "*"));
  EXPECT_FALSE(matches("h.0.ln_1.bias", "bias"));
  EXPECT_FALSE(matches("h.10.ln_1.bias", "h.?.*"));
  EXPECT_FALSE(matches("h.0.ln_1.bias.x", "*.bias"));
  EXPECT_FALSE(matches("", "?"));
  EXPECT_FALSE(matches("abc", "abcd"));
  EXPECT_FALSE(matches("H.0", "h.0"));
  // A pattern of many stars takes no exponential time.
  EXPECT_FALSE(matches(std::string(5000, 'a'), "*a*a*a*a*a*a*a*a*a*a*a*b"));
}

TEST(ParamGroups, WithoutEntriesAreOneOfWholeUnits) {
  const auto layouts = units();
  const ParamGroups groups = make_param_groups(config_with({}), layouts);
  ASSERT_EQ(groups.groups.size(), 1U);
  EXPECT_FALSE(groups.is_divided());
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    ASSERT_EQ(groups.segments[u].size(), 1U);
    EXPECT_EQ(groups.segments[u][0].begin, 0U);
    EXPECT_EQ(groups.segments[u][0].count, layouts[u].flat_count);
  }
}

TEST(ParamGroups, CoverEachUnitInOrderAndJoinNeighbours) {
  const auto layouts = units();
  const ParamGroups groups =
      make_param_groups(config_with({{.match = {"*.h.3.*"}, .lr = 0.5}}, true), layouts);
  std::uint64_t elements = 0, tensors = 0;
  for (const ParamGroup& group : groups.groups) {
    elements += group.elements;
    tensors += group.tensors;
    EXPECT_GT(group.tensors, 0U) << group.name;
  }
  std::uint64_t all = 0, all_tensors = 0;
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    std::uint64_t at = 0;
    const GroupSegment* before = nullptr;
    for (const GroupSegment& segment : groups.segments[u]) {
      EXPECT_EQ(segment.begin, at);
      EXPECT_GT(segment.count, 0U);
      EXPECT_TRUE(before == nullptr || segment.group != before->group);
      before = &segment;
      at += segment.count;
    }
    EXPECT_EQ(at, layouts[u].flat_count);
    all += layouts[u].param_count;
    all_tensors += layouts[u].params.size();
  }
  EXPECT_EQ(elements, all);
  EXPECT_EQ(tensors, all_tensors);
}

TEST(ParamGroups, TheFirstEntryThatMatchesTakesAParameter) {
  const auto layouts = units();
  const auto by_name = groups_by_name(
      make_param_groups(config_with({{.match = {"*.h.1.*.bias", "*.h.2.ln_1.bias"}, .lr = 1e-4},
                                     {.match = {"*.bias"}, .weight_decay = 0.0, .beta2 = 0.5}}),
                        layouts),
      layouts);
  EXPECT_EQ(by_name.at("transformer.h.1.ln_1.bias").optimizer.lr, 1e-4);
  EXPECT_EQ(by_name.at("transformer.h.1.ln_1.bias").optimizer.weight_decay, 0.1);
  EXPECT_EQ(by_name.at("transformer.h.2.ln_1.bias").optimizer.lr, 1e-4);
  EXPECT_EQ(by_name.at("transformer.h.2.ln_2.bias").optimizer.lr, 1e-3);
  EXPECT_EQ(by_name.at("transformer.h.2.ln_2.bias").optimizer.weight_decay, 0);
  EXPECT_EQ(by_name.at("transformer.h.2.ln_2.bias").optimizer.beta2, 0.5);
  EXPECT_EQ(by_name.at("transformer.wte.weight").optimizer.weight_decay, 0.1);
  EXPECT_EQ(by_name.at("transformer.h.11.ln_1.weight").name, "the others");
}

TEST(ParamGroups, BiasesAndNormsHaveNoDecayUnlessTheirEntrySetsOne) {
  const auto layouts = units();
  const auto by_name =
      groups_by_name(make_param_groups(config_with({{.match = {"*.h.0.*"}, .lr = 0.5},
                                                    {.match = {"*.h.1.*"}, .weight_decay = 0.25}},
                                                   true),
                                       layouts),
                     layouts);
  for (const auto& [name, group] : by_name) {
    const bool is_matrix = name.ends_with("e.weight") || name.find(".c_") != std::string::npos;
    const bool decays = is_matrix && !name.ends_with("bias");
    const bool is_first = name.find(".h.0.") != std::string::npos;
    EXPECT_EQ(group.optimizer.lr, is_first ? 0.5 : 1e-3) << name;
    const double own = name.find(".h.1.") != std::string::npos ? 0.25 : decays ? 0.1 : 0.0;
    EXPECT_EQ(group.optimizer.weight_decay, own) << name;
  }
}

TEST(ParamGroups, FrozenUnitsAreInNone) {
  auto layouts = units();
  layouts[0].frozen = true;
  const config::TrainConfig config = config_with({{.match = {"*.wte.weight"}, .lr = 0.5}});
  const ParamGroups groups = make_param_groups(config, layouts);
  EXPECT_TRUE(groups.segments[0].empty());
  EXPECT_FALSE(groups.is_divided());
  EXPECT_THROW(check_param_groups(config, layouts), InvalidArgument);
}

std::string refusal_of(const std::vector<std::vector<std::string>>& matches) {
  std::vector<GroupConfig> entries;
  for (const auto& match : matches) entries.push_back({.match = match, .lr = 0.5});
  try {
    check_param_groups(config_with(std::move(entries)), units());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ParamGroups, APatternThatTakesNoParameterIsRefusedWithNearNames) {
  EXPECT_EQ(refusal_of({{"*.bias"}, {"*.ln_?.weight", "*.ln_f.weight"}}), "accepted");
  EXPECT_THAT(refusal_of({{"*.bias"}, {"*.weight", "ln_2"}}),
              HasSubstr("sluice.groups.1.match: \"ln_2\" matches no parameter that trains"));
  EXPECT_THAT(refusal_of({{"ln_2"}}), HasSubstr("near names are transformer.h.0.ln_2.weight, "));
  EXPECT_THAT(refusal_of({{"transformer.wte.wieght"}}),
              HasSubstr("near names are transformer.wte.weight"));
  EXPECT_THAT(refusal_of({{"something else"}}),
              HasSubstr("such as transformer.wte.weight and transformer.ln_f.bias"));
  EXPECT_THAT(refusal_of({{"*.bias"}, {"*.h.0.*.bias"}}),
              HasSubstr("matches only parameters that an earlier group has"));
}

}  // namespace
}  // namespace sluice::models
