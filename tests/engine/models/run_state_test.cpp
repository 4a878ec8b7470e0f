#include "sluice/models/run_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "message_of.hpp"
#include "sluice/base/error.hpp"

namespace sluice::models {
namespace {

using testing::HasSubstr;

RunState sample() {
  RunState state;
  state.line = "0123456789abcdef";
  state.order = 9;  // two steps were abandoned
  state.saved_at = 1'790'000'000'123'456'789;
  state.model = "{}";
  state.step = 7;
  state.updates = 6;
  state.seed = 3;
  state.compute_dtype = "bf16";
  state.format = {config::MasterFormat::split, config::MomentFormat::bf16};
  state.compute_threads = 2;
  state.world_size = 1;
  state.version = "0.1.0";
  state.settings = {{"batch", "4"}, {"optimizer", "AdamW"}};
  zero::UnitLayout unit;
  unit.name = "embedding";
  zero::add_param(unit, "wte.weight", {256, 64});
  state.units.push_back(unit);
  return state;
}

std::string refusal_of(const std::string& json) {
  return sluice::test::message_of<StorageError>(
      [&] { parse_run_state(json, "DIR/manifest.json"); });
}

TEST(RunState, ComesBackAsItWasWritten) {
  const RunState state = parse_run_state(to_json(sample()), "DIR/manifest.json");
  EXPECT_EQ(state.line, "0123456789abcdef");
  EXPECT_EQ(state.order, 9);
  EXPECT_EQ(state.saved_at, 1'790'000'000'123'456'789);
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.updates, 6);
  EXPECT_EQ(state.units.at(0).params.at(0).name, "wte.weight");
  EXPECT_EQ(state.settings.at("optimizer"), "AdamW");
  EXPECT_EQ(to_json(state), to_json(sample()));
}

TEST(RunState, AManifestWithoutAFormatIsInTheOneThatThereWas) {
  std::string json = to_json(sample());
  for (const std::string key : {"\"master\":\"split\",", "\"moments\":\"bf16\","}) {
    ASSERT_NE(json.find(key), std::string::npos);
    json.erase(json.find(key), key.size());
  }
  EXPECT_EQ(parse_run_state(json, "DIR/manifest.json").format, StateFormat{});
  EXPECT_EQ(parse_run_state(to_json(sample()), "DIR/manifest.json").format, sample().format);
  json = to_json(sample());
  json.replace(json.find("split"), 5, "spilt");
  EXPECT_THAT(refusal_of(json), HasSubstr("DIR/manifest.json"));
}

TEST(RunState, OlderManifestsHaveTheSecondInWhichTheyWereSaved) {
  std::string json = to_json(sample());
  const std::string key = "\"saved_at_ns\":123456789,";
  ASSERT_NE(json.find(key), std::string::npos);
  json.erase(json.find(key), key.size());
  const std::int64_t saved_at = parse_run_state(json, "DIR/manifest.json").saved_at;
  EXPECT_GT(saved_at, sample().saved_at) << "none within that second is later";
  EXPECT_LT(saved_at, 1'790'000'001'000'000'000);
  json.replace(json.find("1790000000"), 10, "0");  // not recorded
  EXPECT_EQ(parse_run_state(json, "DIR/manifest.json").saved_at, 0);
}

TEST(RunState, NamesTheOptimizerWhichWasAdamInOlderManifests) {
  for (const cpu_adam::Rule rule : cpu_adam::kRules) {
    RunState state = sample();
    state.format.rule = rule;
    EXPECT_THAT(to_json(state), HasSubstr("\"optimizer\":\"" + std::string(name_of(rule)) + "\""));
    EXPECT_EQ(parse_run_state(to_json(state), "DIR/manifest.json").format, state.format);
  }
  std::string json = to_json(sample());
  const std::string key = "\"optimizer\":\"Adam\",";
  ASSERT_NE(json.find(key), std::string::npos);
  std::string other = json;
  json.erase(json.find(key), key.size());
  EXPECT_EQ(parse_run_state(json, "DIR/manifest.json").format.rule, cpu_adam::Rule::adam);
  other.replace(other.find(key), key.size(), "\"optimizer\":\"Muon\",");
  EXPECT_THAT(refusal_of(other), HasSubstr("an optimizer \"Muon\", which this version does not"));
}

TEST(RunState, ALossScaleIsKeptToTheLastBitAndMayBeAbsent) {
  EXPECT_EQ(parse_run_state(to_json(sample()), "DIR/manifest.json").loss_scale, std::nullopt);
  RunState state = sample();
  state.compute_dtype = "fp16";
  state.loss_scale = {.scale = 1.0 / 3, .good_steps = 1'234'567'890'123, .hysteresis_left = 3};
  EXPECT_EQ(parse_run_state(to_json(state), "DIR/manifest.json").loss_scale, state.loss_scale);
}

TEST(StateFormat, ItsPartsHoldTheBytesOfAParameterWithoutTheWeightsCopy) {
  using config::MasterFormat;
  using config::MomentFormat;
  EXPECT_EQ((StateFormat{MasterFormat::fp32, MomentFormat::fp32}.element_bytes()), 12U);
  EXPECT_EQ((StateFormat{MasterFormat::split, MomentFormat::fp32}.element_bytes()), 12U);
  EXPECT_EQ((StateFormat{MasterFormat::fp32, MomentFormat::bf16}.element_bytes()), 8U);
  EXPECT_EQ((StateFormat{MasterFormat::split, MomentFormat::bf16}.element_bytes()), 8U);
  // A tile's part of every shard is whole chunks.
  for (const MasterFormat master : {MasterFormat::fp32, MasterFormat::split}) {
    for (const MomentFormat moments : {MomentFormat::fp32, MomentFormat::bf16}) {
      const StateFormat format{master, moments};
      for (std::size_t i = 0; i < format.part_count(); ++i) {
        EXPECT_EQ(format.granularity_count() * format.part(i).element_bytes %
                      offload::kChecksumChunkBytes,
                  0U);
      }
    }
  }
}

TEST(StateFormat, HasAsManyMomentsAsTheOptimizer) {
  using config::MasterFormat;
  using config::MomentFormat;
  const std::size_t moments[] = {2, 3, 1, 1, 1, 0};
  for (std::size_t k = 0; k < std::size(cpu_adam::kRules); ++k) {
    const StateFormat whole{MasterFormat::fp32, MomentFormat::fp32, cpu_adam::kRules[k]};
    const StateFormat split{MasterFormat::split, MomentFormat::bf16, cpu_adam::kRules[k]};
    EXPECT_EQ(moment_count(cpu_adam::kRules[k]), moments[k]);
    EXPECT_EQ(whole.part_count(), 1 + moments[k]);
    EXPECT_EQ(whole.element_bytes(), 4 + 4 * moments[k]);
    EXPECT_EQ(split.part_count(), 2 + moments[k]);
    EXPECT_EQ(split.element_bytes(), 4 + 2 * moments[k]);
    EXPECT_LE(split.part_count(), kMostStateParts);
  }
  EXPECT_EQ(
      (StateFormat{MasterFormat::split, MomentFormat::fp32, cpu_adam::Rule::amsgrad}.part(4).name),
      "moment3");
}

TEST(RunState, ValuesThatNoRunHasAreRefusedWithTheFile) {
  const std::vector<std::function<void(RunState&)>> changes = {
      [](RunState& s) { s.step = -1; },
      [](RunState& s) { s.order = 6; },
      [](RunState& s) { s.saved_at = -5'000'000'000; },
      [](RunState& s) { s.updates = -1; },
      [](RunState& s) { s.updates = 8; },
      [](RunState& s) { s.compute_threads = 0; },
      [](RunState& s) { s.compute_threads = 100000; },
      [](RunState& s) { s.world_size = 0; },
      [](RunState& s) { s.units.clear(); },
      [](RunState& s) { s.loss_scale = {.scale = 0}; },
      [](RunState& s) { s.loss_scale = {.scale = -2}; },
      [](RunState& s) { s.loss_scale = {.good_steps = -1}; },
      [](RunState& s) { s.loss_scale = {.hysteresis_left = 0}; },
  };
  for (const auto& change : changes) {
    RunState state = sample();
    change(state);
    EXPECT_THAT(refusal_of(to_json(state)), HasSubstr("DIR/manifest.json"));
  }
}

TEST(RunState, TextThatIsNoDescriptionIsRefusedWithTheFile) {
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("{\"step\": \"x\"}"),
        std::string(100000, '['), "{\"a\":" + std::string(100000, '[')}) {
    EXPECT_THAT(refusal_of(text), HasSubstr("DIR/manifest.json"));
  }
}

}  // namespace
}  // namespace sluice::models
