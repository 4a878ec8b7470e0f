// The sections bf16 and fp16: which type a model computes in, and the loss scale of fp16.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.hpp"

namespace sluice::config::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JsonText fp16() {
  return minimal().set("fp16.enabled", "true");
}

TEST(Precision, IsThatOfTheSectionThatIsEnabled) {
  EXPECT_EQ(parse(minimal()).compute_dtype(), DType::fp32);
  EXPECT_EQ(parse(minimal().set("bf16.enabled", "true")).compute_dtype(), DType::bf16);
  EXPECT_EQ(parse(fp16()).compute_dtype(), DType::fp16);
  EXPECT_EQ(parse(fp16().set("bf16.enabled", "false")).compute_dtype(), DType::fp16);
}

TEST(Precision, OfBothSectionsIsRefusedNamingBoth) {
  const auto problems = problems_of(fp16().set("bf16.enabled", "true"));
  ASSERT_EQ(problems.size(), 1U) << shown(problems);
  EXPECT_EQ(problems[0].key_path, "fp16.enabled");
  EXPECT_THAT(problems[0].message, HasSubstr("bf16.enabled is true as well"));
}

TEST(Precision, OfASplitMasterIsBf16) {
  EXPECT_THAT(shown(problems_of(fp16().set("sluice.master", "\"split\""))),
              HasSubstr("sluice.master: \"split\" is for bf16 weights"));
}

TEST(Precision, ClippingOrFp16MakeUpdatesWait) {
  const auto wait = [](const std::string& clipping, bool is_fp16) {
    const JsonText json = is_fp16 ? fp16() : minimal();
    return parse(JsonText(json).set("gradient_clipping", clipping)).updates_need_all_gradients();
  };
  EXPECT_FALSE(wait("0", false));
  EXPECT_TRUE(wait("1", false));
  EXPECT_TRUE(wait("0", true));
}

// A file of this precision and stage, with the type of sums if there is one.
TrainConfig sums(const char* precision, int stage, const char* type = nullptr) {
  JsonText json = minimal().set("zero_optimization.stage", std::to_string(stage));
  if (*precision != '\0') json.set(std::string(precision) + ".enabled", "true");
  if (type != nullptr) json.set("data_types.grad_accum_dtype", "\"" + std::string(type) + "\"");
  return parse(json);
}

TEST(GradientSums, AreInTheTypeThatTheFileNames) {
  for (const char* name : {"fp32", "float32", "float", "torch.float32"}) {
    EXPECT_EQ(sums("bf16", 3, name).gradient_dtype(), DType::fp32) << name;
    EXPECT_EQ(sums("fp16", 1, name).gradient_dtype(), DType::fp32) << name;
    EXPECT_EQ(sums("", 1, name).gradient_dtype(), DType::fp32) << name;
  }
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16"})
    EXPECT_EQ(sums("bf16", 0, name).gradient_dtype(), DType::bf16) << name;
  EXPECT_EQ(sums("fp16", 1, "half").gradient_dtype(), DType::fp16);
  EXPECT_THAT(sums("bf16", 2, "fp32").notes, testing::IsEmpty());
}

TEST(GradientSums, AreInTheTypeThatComputesByDefault) {
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_EQ(sums("bf16", stage).gradient_dtype(), DType::bf16);
    EXPECT_EQ(sums("fp16", stage).gradient_dtype(), DType::fp16);
    EXPECT_EQ(sums("", stage).gradient_dtype(), DType::fp32);
  }
}

TEST(GradientSums, AreNeverRoundedFurther) {
  for (const auto& [precision, type] : {std::pair("", "bf16"), {"", "fp16"}, {"bf16", "fp16"}}) {
    const TrainConfig config = sums(precision, 1, type);
    EXPECT_EQ(config.gradient_dtype(), config.compute_dtype()) << precision << ' ' << type;
    EXPECT_THAT(config.notes, testing::Contains(HasSubstr("grad_accum_dtype: no effect: ")));
  }
}

TEST(Fp16, HasDeepSpeedsDefaults) {
  const Fp16Config defaults = parse(fp16()).fp16;
  EXPECT_TRUE(defaults.is_dynamic());
  EXPECT_EQ(defaults.initial_scale(), 65536);
  EXPECT_EQ(defaults.loss_scale_window, 1000);
  EXPECT_EQ(defaults.hysteresis, 2);
  EXPECT_FALSE(defaults.consecutive_hysteresis);
  EXPECT_EQ(defaults.min_loss_scale, 1);
}

TEST(Fp16, AScaleOtherThanZeroIsStaticAndKeysOfADynamicOneAreNoted) {
  const TrainConfig config = parse(fp16()
                                       .set("fp16.loss_scale", "128.5")
                                       .set("fp16.loss_scale_window", "1000")
                                       .set("fp16.hysteresis", "3"));
  EXPECT_FALSE(config.fp16.is_dynamic());
  EXPECT_EQ(config.fp16.initial_scale(), 128.5);
  EXPECT_THAT(config.notes,
              ElementsAre("note: fp16.loss_scale_window: no effect unless loss_scale is 0, which "
                          "is dynamic",
                          "note: fp16.hysteresis: no effect unless loss_scale is 0, which is "
                          "dynamic"));
  EXPECT_THAT(parse(fp16().set("fp16.loss_scale_window", "7")).notes, ElementsAre());
}

TEST(Fp16, ScalesThatFp32CannotDivideByAreRefused) {
  const std::pair<const char*, const char*> bad[] = {
      {"loss_scale", "-1"},           {"loss_scale", "1e39"},
      {"loss_scale", "1e-31"},        {"loss_scale", "true"},
      {"loss_scale", "\"x\""},        {"loss_scale", "NaN"},
      {"loss_scale", "1e999"},        {"min_loss_scale", "0"},
      {"min_loss_scale", "-2"},       {"min_loss_scale", "1e39"},
      {"min_loss_scale", "null"},     {"hysteresis", "0"},
      {"hysteresis", "1.5"},          {"loss_scale_window", "0"},
      {"loss_scale_window", "-5"},    {"initial_scale_power", "128"},
      {"initial_scale_power", "-1"},  {"initial_scale_power", "2000"},
      {"initial_scale_power", "0.5"}, {"consecutive_hysteresis", "1"}};
  for (const auto& [key, value] : bad)
    EXPECT_EQ(problems_of(fp16().set(std::string("fp16.") + key, value)).size(), 1U)
        << key << " " << value;
  const std::pair<const char*, const char*> good[] = {
      {"loss_scale", "1e38"},      {"loss_scale", "\"3\""},        {"loss_scale", "1e-30"},
      {"min_loss_scale", "1e-30"}, {"initial_scale_power", "127"}, {"initial_scale_power", "0"},
      {"hysteresis", "1"}};
  for (const auto& [key, value] : good)
    EXPECT_EQ(shown(problems_of(fp16().set(std::string("fp16.") + key, value))), "")
        << key << " " << value;
}

TEST(Fp16, TheLeastScaleIsNotAboveTheFirst) {
  const auto with_power = [](const std::string& power) {
    return fp16().set("fp16.min_loss_scale", "16").set("fp16.initial_scale_power", power);
  };
  EXPECT_EQ(shown(problems_of(with_power("4"))), "");
  EXPECT_THAT(shown(problems_of(with_power("3"))),
              HasSubstr("fp16.min_loss_scale: above the scale that the run begins with, 2^3"));
}

TEST(Fp16, MastersAndGradientsInFp16StayRefused) {
  EXPECT_THAT(shown(problems_of(fp16().set("fp16.fp16_master_weights_and_grads", "true"))),
              HasSubstr("fp16.fp16_master_weights_and_grads: not supported yet"));
}

// A type of weights or buffers asks for nothing beside the switch of that type.
TEST(DataTypes, OfWeightsAndBuffersAreThatOfComputing) {
  for (const char* key : {"data_types.param_dtype", "data_types.buffer_dtype"}) {
    const JsonText bf16 = minimal().set("bf16.enabled", "true");
    for (const char* name : {"\"bf16\"", "\"bfloat16\"", "\"torch.bfloat16\""})
      EXPECT_EQ(shown(problems_of(JsonText(bf16).set(key, name))), "") << key << name;
    EXPECT_EQ(shown(problems_of(fp16().set(key, "\"half\""))), "") << key;
    EXPECT_EQ(shown(problems_of(minimal().set(key, "\"float\""))), "") << key;
    EXPECT_THAT(
        shown(problems_of(JsonText(bf16).set(key, "\"fp32\""))),
        HasSubstr(std::string(key) + ": the run computes in bf16, found \"fp32\"; remove it, "
                                     "or switch bf16 and fp16 off"));
    EXPECT_THAT(shown(problems_of(minimal().set(key, "\"bf16\""))),
                HasSubstr("the run computes in fp32, found \"bf16\"; remove it, or write \"bf16\": "
                          "{\"enabled\": true}"));
  }
}

}  // namespace
}  // namespace sluice::config::test
