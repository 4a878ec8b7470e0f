// The optimizers and parameter groups of a file: defaults of each type, and the values of groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.hpp"

namespace sluice::config::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

JsonText of_type(const std::string& type) {
  return minimal().set("optimizer.type", "\"" + type + "\"");
}

// As DeepSpeed's classes and torch.optim have them.
TEST(OptimizerTypes, HaveTheirOwnDefaults) {
  const OptimizerConfig adagrad = parse(of_type("Adagrad")).optimizer;
  EXPECT_EQ(adagrad.type, OptimizerType::adagrad);
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(adagrad.eps, 1e-10);
  EXPECT_EQ(adagrad.weight_decay, 0);
  const OptimizerConfig lion = parse(of_type("LION")).optimizer;
  EXPECT_EQ(lion.type, OptimizerType::lion);
  EXPECT_EQ(lion.lr, 1e-3);
  EXPECT_EQ(lion.beta2, 0.999);
  const OptimizerConfig sgd = parse(of_type("sgd")).optimizer;
  EXPECT_EQ(sgd.type, OptimizerType::sgd);
  EXPECT_EQ(sgd.lr, 1e-3);
  EXPECT_EQ(sgd.momentum, 0);
  EXPECT_EQ(parse(of_type("AdamW")).optimizer.eps, 1e-8);
}

TEST(OptimizerTypes, ReadTheirParameters) {
  const OptimizerConfig adagrad =
      parse(of_type("Adagrad")
                .set("optimizer.params.lr_decay", "0.5")
                .set("optimizer.params.eps", "0.25")
                .set("optimizer.params.initial_accumulator_value", "0.125"))
          .optimizer;
  EXPECT_EQ(adagrad.lr_decay, 0.5);
  EXPECT_EQ(adagrad.eps, 0.25);
  EXPECT_EQ(adagrad.initial_accumulator_value, 0.125);
  const OptimizerConfig sgd = parse(of_type("SGD")
                                        .set("optimizer.params.momentum", "0.5")
                                        .set("optimizer.params.nesterov", "true")
                                        .set("optimizer.params.maximize", "true"))
                                  .optimizer;
  EXPECT_EQ(sgd.momentum, 0.5);
  EXPECT_TRUE(sgd.nesterov);
  EXPECT_TRUE(sgd.maximize);
  EXPECT_TRUE(parse(of_type("AdamW").set("optimizer.params.amsgrad", "true")).optimizer.amsgrad);
}

TEST(OptimizerTypes, RefuseParametersOfOthers) {
  for (const auto& [type, key] :
       std::vector<std::pair<std::string, std::string>>{{"Lion", "eps"},
                                                        {"Lion", "amsgrad"},
                                                        {"Lion", "maximize"},
                                                        {"SGD", "eps"},
                                                        {"SGD", "betas"},
                                                        {"SGD", "bias_correction"},
                                                        {"Adagrad", "momentum"},
                                                        {"AdamW", "dampening"}}) {
    const std::string value = key == "betas" ? "[0.9, 0.99]"
                              : key == "eps" || key == "momentum" || key == "dampening" ? "0.5"
                                                                                        : "true";
    EXPECT_THAT(shown(problems_of(of_type(type).set("optimizer.params." + key, value))),
                HasSubstr("optimizer.params." + key + ": " + type + " has no such parameter"));
  }
}

TEST(OptimizerTypes, AFlagThatReplacesThemLeavesTheirParametersBehind) {
  const TrainConfig config = parse_train_config(
      R"({"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.9}}})",
      "ds.json", {.settings = {{"optimizer.type", "AdamW", "--optimizer"}}});
  EXPECT_EQ(config.optimizer.type, OptimizerType::adamw);
  EXPECT_EQ(config.optimizer.lr, 0.5);
  EXPECT_THAT(config.notes, Contains("note: optimizer.params.momentum: no effect, since the "
                                     "optimizer is replaced"));
}

TEST(ParameterGroups, AreReadInTheirOrder) {
  const TrainConfig config =
      parse(minimal()
                .set("sluice.groups", R"([{"match": "*.bias", "weight_decay": 0, "eps": 0.5},
                                          {"match": ["a", "b?"], "lr": 1e-4, "betas": [0.5, 0.25]}])")
                .set("sluice.no_decay", "\"biases_and_norms\""));
  ASSERT_EQ(config.groups.entries.size(), 2U);
  const GroupConfig& first = config.groups.entries[0];
  const GroupConfig& second = config.groups.entries[1];
  EXPECT_EQ(first.match, std::vector<std::string>{"*.bias"});
  EXPECT_EQ(first.weight_decay, 0.0);
  EXPECT_EQ(first.eps, 0.5);
  EXPECT_FALSE(first.lr.has_value());
  EXPECT_EQ(second.match, (std::vector<std::string>{"a", "b?"}));
  EXPECT_EQ(second.lr, 1e-4);
  EXPECT_EQ(second.beta1, 0.5);
  EXPECT_EQ(second.beta2, 0.25);
  EXPECT_TRUE(config.groups.no_decay_of_biases_and_norms);
  EXPECT_THAT(config.notes, Contains("note: sluice.no_decay: no effect unless weight_decay is "
                                     "above 0"));
}

TEST(ParameterGroups, HaveMomentumWhereTheOptimizerHasABuffer) {
  const auto problems = [](const std::string& momentum, const std::string& own) {
    return shown(
        problems_of(of_type("SGD")
                        .set("optimizer.params.momentum", momentum)
                        .set("sluice.groups", R"([{"match": "*", "momentum": )" + own + "}]")));
  };
  EXPECT_EQ(problems("0.9", "0.5"), "");
  EXPECT_THAT(problems("0", "0.5"), HasSubstr("give optimizer.params.momentum a value above 0"));
  EXPECT_THAT(problems("0.9", "0"),
              HasSubstr("must be above 0, since optimizer.params.momentum is"));
}

TEST(ParameterGroups, ARateNeedsOneOfTheOptimizer) {
  EXPECT_THAT(shown(problems_of(minimal()
                                    .set("optimizer.params.lr", "0")
                                    .set("sluice.groups", R"([{"match": "*", "lr": 1}])"))),
              HasSubstr("sluice.groups.0.lr: a group's rate follows the schedule in proportion"));
}

TEST(ParameterGroups, SayThatAScheduleWithARateOfItsOwnScalesTheirs) {
  const auto notes = [](const char* highest) {
    return parse(minimal()
                     .set("optimizer.params.lr", "0.5")
                     .set("scheduler.type", "\"WarmupLR\"")
                     .set("scheduler.params.warmup_max_lr", highest)
                     .set("sluice.groups", R"([{"match": "*", "lr": 1}])"))
        .notes;
  };
  EXPECT_THAT(notes("0.25"), Contains("note: sluice.groups: rates of groups are scaled by "
                                      "warmup_max_lr over optimizer.params.lr, 0.25 over 0.5"));
  EXPECT_TRUE(notes("0.5").empty());
}

TEST(ParameterGroups, OfAFlagReplaceThoseOfTheFile) {
  const std::string file = minimal().set("sluice.groups", R"([{"match": "a", "lr": 1}])").text();
  const TrainConfig config = parse_train_config(
      file, "ds.json", {.settings = {{"sluice.groups", R"([{"match": "b", "lr": 2}])", "--set"}}});
  ASSERT_EQ(config.groups.entries.size(), 1U);
  EXPECT_EQ(config.groups.entries[0].match.front(), "b");
}

}  // namespace
}  // namespace sluice::config::test
