// Values of the command line over those of a file, and the "auto" of the Hugging Face Trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.hpp"
#include "message_of.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::config::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TrainConfig parse_with(const std::string& text, const std::vector<Setting>& settings,
                       int world_size = 1) {
  return parse_train_config(text, "ds.json", of_program(world_size, settings));
}
std::string mistakes_with(const std::string& text, const std::vector<Setting>& settings) {
  return sluice::test::message_of<ConfigError>([&] { parse_with(text, settings); });
}
Setting flag(const std::string& name, const std::string& value) {
  for (const FlagInfo& info : flag_table()) {
    if (info.flag == name) return {std::string(info.key), value, name};
  }
  ADD_FAILURE() << "there is no flag " << name;
  return {};
}

TEST(Flags, FillAutoAndAbsentKeysAndReplaceValuesWithALine) {
  const TrainConfig config = parse_with(
      R"({"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 0.5,
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}})",
      {flag("--per-device-train-batch-size", "3"), flag("--learning-rate", "2e-4"),
       flag("--adam-beta2", "0.95"), flag("--max-grad-norm", "2"), flag("--bf16", "true")});
  EXPECT_EQ(config.micro_batch_size, 3);
  EXPECT_EQ(config.optimizer.lr, 2e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.9);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.gradient_clipping, 2);
  EXPECT_TRUE(config.bf16);
  EXPECT_THAT(config.notes, ElementsAre("note: gradient_clipping: 2 of --max-grad-norm replaces "
                                        "0.5 of the file"));
  EXPECT_EQ(config.origins.at("optimizer.params.lr"), "--learning-rate");
  EXPECT_EQ(config.origins.at("optimizer.type"), "ds.json:2:25");
}

TEST(Flags, EveryOneGivesTheValueOfAKeyOfTheTable) {
  const char* text = R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam"},
                         "scheduler": {"type": "WarmupLR"}})";
  for (const FlagInfo& info : flag_table()) {
    const std::string value = info.placeholder.empty()     ? "true"
                              : info.placeholder == "NAME" ? "AdamW"
                              : info.placeholder == "N"    ? "2"
                                                           : "0.25";
    const TrainConfig config =
        parse_with(text, {{std::string(info.key), value, std::string(info.flag)}});
    std::string key(info.key);
    if (key.ends_with(".0") || key.ends_with(".1")) key.resize(key.size() - 2);
    EXPECT_TRUE(config.origins.contains(key)) << info.flag;
    EXPECT_THAT(flags_of(key), HasSubstr(std::string(info.flag)));
  }
}

TEST(Flags, GiveAnOptimizerToAFileWithoutOne) {
  const TrainConfig config =
      parse_with(R"({"train_batch_size": 4})", {flag("--weight-decay", "0.1")});
  EXPECT_EQ(config.optimizer.type, OptimizerType::adamw);
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  const TrainConfig named =
      parse_with(R"({"train_batch_size": 4})",
                 {flag("--optimizer", "Adam"), {"optimizer.params.adam_w_mode", "false", "--set"}});
  EXPECT_EQ(named.optimizer.type, OptimizerType::adam);
}

TEST(Flags, ReplaceAnOptimizerAndNameTheParametersThatItLeavesBehind) {
  const char* lamb = R"({"train_batch_size": 4, "optimizer": {"type": "Lamb",
                         "params": {"lr": 0.002, "max_coeff": 0.5}}})";
  EXPECT_THAT(mistakes_with(lamb, {}), HasSubstr("\"Lamb\" is not supported"));
  const TrainConfig config = parse_with(lamb, {flag("--optimizer", "AdamW")});
  EXPECT_EQ(config.optimizer.lr, 0.002);
  EXPECT_THAT(config.notes, Contains("note: optimizer.params.max_coeff: no effect, since the "
                                     "optimizer is replaced"));
}

TEST(Flags, FindTheOldNameThatTheFileHas) {
  const TrainConfig config = parse_with(
      R"({"train_batch_size": 4, "bfloat16": {"enabled": "auto"}})", {flag("--bf16", "true")});
  EXPECT_TRUE(config.bf16);
}

TEST(Flags, MakeABoolASection) {
  const TrainConfig config = parse_with(R"({"train_batch_size": 4, "zero_optimization": true})",
                                        {{"zero_optimization.stage", "3", "--set"}});
  EXPECT_EQ(config.zero.stage, 3);
}

TEST(Flags, ReplaceBatchSizesThatDoNotFit) {
  const char* text = R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4,
                         "gradient_accumulation_steps": 8})";
  const TrainConfig micro = parse_with(text, {flag("--per-device-train-batch-size", "2")});
  EXPECT_EQ(micro.train_batch_size, 256);
  EXPECT_EQ(micro.gradient_accumulation_steps, 128);
  EXPECT_THAT(micro.notes, Contains("note: gradient_accumulation_steps: 8 of the file does not fit "
                                    "the batch sizes of the flags, and is derived"));
  const TrainConfig accumulation = parse_with(text, {flag("--gradient-accumulation-steps", "16")});
  EXPECT_EQ(accumulation.train_batch_size, 64);
  const TrainConfig fitting = parse_with(text, {flag("--gradient-accumulation-steps", "64")});
  EXPECT_EQ(fitting.train_batch_size, 256);
  EXPECT_THAT(mistakes_with(text, {}), HasSubstr("The file is for 8 ranks"));
}

TEST(Flags, ReplaceATrainingBatchThatIsAloneInTheFile) {
  // 4 sequences are less than a micro batch of 8.
  const TrainConfig micro =
      parse_with(R"({"train_batch_size": 4})", {flag("--per-device-train-batch-size", "8")});
  EXPECT_EQ(micro.train_batch_size, 8);
  EXPECT_EQ(micro.gradient_accumulation_steps, 1);
  EXPECT_THAT(micro.notes, Contains("note: train_batch_size: 4 of the file does not fit the batch "
                                    "sizes of the flags, and is derived"));
  const TrainConfig both =
      parse_with(R"({"train_batch_size": 4, "gradient_accumulation_steps": 1})",
                 {flag("--per-device-train-batch-size", "8")});
  EXPECT_EQ(both.train_batch_size, 8);
  // Nothing else says how large a batch is.
  EXPECT_THAT(
      mistakes_with(R"({"train_batch_size": 4})", {flag("--gradient-accumulation-steps", "3")}),
      HasSubstr("4 is not 1 x 3 x 1"));
}

TEST(Flags, ThatContradictEachOtherInTheBatchAreAnError) {
  EXPECT_THAT(
      mistakes_with("{}",
                    {flag("--train-batch-size", "4"), flag("--per-device-train-batch-size", "8")}),
      HasSubstr("must be micro batch x accumulation steps x ranks: 4 is less than one micro "
                "batch of 8\n"));
  EXPECT_THAT(mistakes_with("{}", {flag("--train-batch-size", "4"),
                                   flag("--gradient-accumulation-steps", "8")}),
              HasSubstr("4 is less than 8 accumulation steps\n"));
}

TEST(Flags, ThatGiveOneKeyTwiceSayWhichCounts) {
  const TrainConfig config = parse_with(
      R"({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 3}}})",
      {flag("--learning-rate", "2"), {"optimizer.params.lr", "1", "--set optimizer.params.lr"}});
  EXPECT_EQ(config.optimizer.lr, 1);
  EXPECT_THAT(config.notes,
              ElementsAre("note: optimizer.params.lr: 1 of --set replaces 2 of --learning-rate",
                          "note: optimizer.params.lr: 1 of --set replaces 3 of the file"));
  const TrainConfig old_name =
      parse_with(R"({"train_batch_size": 4})",
                 {flag("--bf16", "true"), {"bfloat16.enabled", "false", "--set bfloat16.enabled"}});
  EXPECT_FALSE(old_name.bf16);
  EXPECT_THAT(old_name.notes,
              Contains("note: bfloat16.enabled: false of --set replaces true of --bf16"));
  const TrainConfig equal =
      parse_with(R"({"train_batch_size": 4})",
                 {flag("--max-grad-norm", "2.0"), {"gradient_clipping", "2", "--set x"}});
  EXPECT_EQ(equal.gradient_clipping, 2);
}

TEST(Flags, AreNamedWhole) {
  const TrainConfig config = parse_with(
      R"({"train_batch_size": 4, "gradient_clipping": 3, "scheduler": {"type": "WarmupLR"}})",
      {{"scheduler", "null", "the script's scheduler"},
       {"gradient_clipping", "2", "the script's clipping"}});
  EXPECT_THAT(config.notes, Contains("note: scheduler: the script's scheduler replaces the whole "
                                     "section, without its keys type"));
  EXPECT_THAT(config.notes, Contains("note: gradient_clipping: 2 of the script's clipping replaces "
                                     "3 of the file"));
}

TEST(Flags, OfAWholeSectionSayWhichKeysAreLost) {
  const char* text = R"({"train_batch_size": 4, "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "cpu"}, "overlap_comm": true}})";
  const TrainConfig config =
      parse_with(text, {{"zero_optimization", R"({"stage": 1})", "--set zero_optimization"}});
  EXPECT_EQ(config.zero.stage, 1);
  EXPECT_EQ(config.zero.offload_optimizer.device, OffloadConfig::Device::none);
  EXPECT_THAT(config.notes,
              Contains("note: zero_optimization: --set replaces the whole section, without its "
                       "keys offload_optimizer, overlap_comm"));
  // A key's own flag holds beside it, in any order.
  const TrainConfig both =
      parse_with(text, {{"zero_optimization.stage", "3", "--set zero_optimization.stage"},
                        {"zero_optimization", R"({"stage": 1})", "--set zero_optimization"}});
  EXPECT_EQ(both.zero.stage, 3);
  EXPECT_THAT(both.notes,
              Contains("note: zero_optimization.stage: 3 of --set replaces 1 of --set"));
}

TEST(Flags, OfOnlyAutoLeaveAValueAlone) {
  const auto steps = [](const char* total) {
    const TrainConfig config = parse_with(
        R"({"train_batch_size": 4, "scheduler": {"type": "WarmupCosineLR", "params": {
            "total_num_steps": )" +
            std::string(total) + "}}}",
        {{"scheduler.params.total_num_steps", "70", "--steps", true}});
    return std::get<WarmupCosineLR>(config.scheduler).total_num_steps;
  };
  EXPECT_EQ(steps("\"auto\""), 70);
  EXPECT_EQ(steps("50"), 50);
}

TEST(Flags, AreNamedInTheMessageOfTheirMistake) {
  const std::string mistakes = mistakes_with(
      R"({"train_batch_size": 4})", {flag("--learning-rate", "-1"), parse_setting("grad_clip=1"),
                                     parse_setting("zero_optimization.stage=seven")});
  EXPECT_THAT(mistakes, HasSubstr("--learning-rate: optimizer.params.lr: expected number in [0, "
                                  "1e10], found -1 (number)\n"));
  EXPECT_THAT(mistakes, HasSubstr("--set grad_clip: grad_clip: unknown key; did you mean "
                                  "\"gradient_clipping\"?\n"));
  EXPECT_THAT(mistakes,
              HasSubstr("--set zero_optimization.stage: zero_optimization.stage: expected "
                        "integer in [0, 3], found \"seven\" (string)\n"));
  EXPECT_THAT(mistakes_with(R"({"train_batch_size": 4})", {parse_setting("no_such_thing=1")}),
              HasSubstr("unknown key"));
  EXPECT_THROW(parse_setting("lr"), InvalidArgument);
}

TEST(Flags, OfListsNameTheListThatTheyMake) {
  const char* text = R"({"train_batch_size": 4, "optimizer": {"type": "AdamW",
                         "params": {"betas": [0.9, 0.999]}}})";
  EXPECT_THAT(mistakes_with(text, {flag("--adam-beta2", "2")}),
              HasSubstr("--adam-beta2: optimizer.params.betas: expected two numbers in [0, 1), "
                        "found [0.9"));
  for (const char* key :
       {"optimizer.params.betas.x", "optimizer.params.betas.7",
        "optimizer.params.betas.99999999999", "train_batch_size.x", "..", "a.b.c"})
    EXPECT_NE(mistakes_with(text, {parse_setting(std::string(key) + "=1")}), "") << key;
  EXPECT_THROW(parse_setting("aio.block_size=" + std::string(5000, '[')), InvalidArgument);
}

TEST(Auto, ThatIsOpenIsOneErrorThatNamesEveryFlag) {
  const auto problems = problems_of(std::string(
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": "auto"}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})"));
  ASSERT_EQ(problems.size(), 1U) << shown(problems);
  EXPECT_THAT(
      problems[0].message,
      HasSubstr("optimizer.params.lr (--learning-rate LR), scheduler.params.total_num_steps "
                "(--steps N), train_micro_batch_size_per_gpu (--per-device-train-batch-size "
                "N)"));
}

// A script has no flags of the program, nor has a loop of one's own.
TEST(Flags, AreNamedOnlyToReadersThatHaveThem) {
  const auto said = [](const char* text, bool has_flags) {
    std::string lines;
    try {
      for (const std::string& note :
           parse_train_config(text, "ds.json", {.has_flags = has_flags}).notes)
        lines += note + "\n";
    } catch (const ConfigError& error) {
      lines = error.what();
    }
    return lines;
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"optimizer": {"type": "AdamW"}})",
       "train_batch_size or train_micro_batch_size_per_gpu is required; add one of them\n"},
      {R"({"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})",
       "from its arguments. Write the values: optimizer.params.lr, train_batch_size\n"},
      {R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
           "gradient_accumulation_steps": 4})",
       "for 8 ranks: \"gradient_accumulation_steps\": 32 trains the same batch on one\n"},
      {R"({"train_batch_size": 4})", "lr 0.001 and weight_decay 0\n"},
      {R"({"train_batch_size": 4, "gradient_clipping": "auto"})",
       "note: gradient_clipping: \"auto\" means the default, 1.0\n"},
      {R"({"train_batch_size": 4, "max_steps": 100})", "note: max_steps: unknown key"},
      {R"({"train_batch_size": 4, "num_train_epochs": 3})", "note: num_train_epochs: unknown key"},
  };
  for (const auto& [text, words] : cases) {
    EXPECT_THAT(said(text, true), HasSubstr("--"));
    EXPECT_THAT(said(text, false), HasSubstr(words));
    EXPECT_THAT(said(text, false), testing::Not(HasSubstr("--")));
  }
}

TEST(Auto, WithoutAFlagIsTheTrainersDefaultWithALine) {
  const TrainConfig config = parse_train_config(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",
          "gradient_clipping": "auto",
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": "auto", "torch_adam": true}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9,
            "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}})",
      "ds.json", of_program());
  EXPECT_EQ(config.gradient_accumulation_steps, 1);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  const WarmupDecayLR& schedule = std::get<WarmupDecayLR>(config.scheduler);
  EXPECT_EQ(schedule.warmup_max_lr, 0.01);
  EXPECT_EQ(schedule.warmup_num_steps, 1);
  EXPECT_THAT(config.notes, Contains("note: gradient_clipping: \"auto\" means the default, 1.0 (or "
                                     "give --max-grad-norm X)"));
  EXPECT_THAT(config.notes, Contains(HasSubstr("warmup_num_steps: \"auto\" means 1")));
  EXPECT_THAT(config.notes,
              Contains("note: scheduler.params.warmup_max_lr: \"auto\" means the optimizer's lr"));
}

TEST(Auto, ThatTheTrainerDoesNotFillIsAnError) {
  EXPECT_THAT(shown(problems_of(minimal().set("aio.block_size", "\"auto\""))),
              HasSubstr("the Hugging Face Trainer fills in no \"auto\" here: write the value"));
}

TEST(NumbersInStrings, AreTakenWhereDeepSpeedTakesThem) {
  EXPECT_EQ(parse(minimal().set("zero_optimization.stage", "\"2\"")).zero.stage, 2);
  EXPECT_EQ(parse(minimal().set("fp16.enabled", "true").set("fp16.loss_scale", "\"128.5\""))
                .fp16.loss_scale,
            128.5);
  for (const char* bad :
       {"\"\"", "\"-\"", "\"2x\"", "\"0x2\"", "\"2.5\"", "\"99999999999999999999\""})
    EXPECT_THAT(shown(problems_of(minimal().set("zero_optimization.stage", bad))),
                HasSubstr("expected integer in [0, 3]"))
        << bad;
  EXPECT_THAT(shown(problems_of(minimal().set("aio.queue_depth", "\"8\""))),
              HasSubstr("found \"8\" (string)"));
}

TEST(Hjson, KeysMayLackQuotesAndKeepTheirPositions) {
  const std::string text =
      "{train_batch_size: 8, // a comment\n  optimizer : {type: \"AdamW\", params: {lr: -1}}}";
  const auto problems = problems_of(text);
  ASSERT_EQ(problems.size(), 1U) << shown(problems);
  EXPECT_EQ(shown(problems),
            "2:40: optimizer.params.lr: expected number in [0, 1e10], found -1 (number)\n");
  EXPECT_THAT(shown(problems_of(std::string("{train_batch_size: 8,\n train_batch_size: 4}"))),
              HasSubstr("2:2: train_batch_size: this key is given twice"));
  EXPECT_THAT(shown(problems_of(std::string("{train_batch_size: 8, aio: {x: 1 \"y\": 2}}"))),
              HasSubstr("1:34: : not JSON: Missing ','"));
}

TEST(Base64, StandsInPlaceOfAFile) {
  // {"train_batch_size": 8}
  const std::string text = "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0=";
  EXPECT_EQ(load_train_config(text).train_batch_size, 8);
  const std::string object = "{\"train_batch_size\": 8}";
  EXPECT_EQ(decoded_config(text), object);
  EXPECT_EQ(decoded_config(" eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0\n"), object) << "without padding";
  EXPECT_EQ(decoded_config("77u/eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="), object) << "byte order mark";
  EXPECT_EQ(decoded_config("IyBvdXJzCi8qIGEgKi97fQ=="), "# ours\n/* a */{}");
  EXPECT_EQ(decoded_config("IyBvdXJz"), "") << "a comment alone";
  for (const char* const path : {"", "ds.json", "configs/ds_config", "abcdefgh"})
    EXPECT_EQ(decoded_config(path), "");
}

TEST(SwitchedOff, SectionsTakeNumbersOutOfRange) {
  EXPECT_EQ(shown(problems_of(minimal().set("fp16.loss_scale_window", "0"))), "");
  EXPECT_EQ(shown(problems_of(minimal()
                                  .set("fp16.enabled", "true")
                                  .set("fp16.loss_scale", "64")
                                  .set("fp16.loss_scale_window", "0"))),
            "");
  for (const char* scale : {"64", "\"64\""}) {
    for (const char* value : {"-1", "1e15"}) {
      EXPECT_EQ(shown(problems_of(minimal()
                                      .set("fp16.enabled", "true")
                                      .set("fp16.loss_scale", scale)
                                      .set("fp16.hysteresis", value))),
                "")
          << scale << ' ' << value;
    }
  }
  EXPECT_NE(
      shown(problems_of(minimal().set("fp16.enabled", "true").set("fp16.loss_scale_window", "0"))),
      "");
}

TEST(TorchAdam, HasTorchsWeightDecay) {
  const auto decay = [](const char* type, const char* mode, const char* given) {
    JsonText json =
        minimal().set("optimizer.type", type).set("optimizer.params.torch_adam", "true");
    if (mode != nullptr) json.set("optimizer.params.adam_w_mode", mode);
    if (given != nullptr) json.set("optimizer.params.weight_decay", given);
    return parse(json).optimizer.weight_decay;
  };
  EXPECT_EQ(decay("\"AdamW\"", nullptr, nullptr), 0.01);
  EXPECT_EQ(decay("\"Adam\"", nullptr, nullptr), 0.01);
  EXPECT_EQ(decay("\"Adam\"", "false", nullptr), 0);
  EXPECT_EQ(decay("\"AdamW\"", nullptr, "0.25"), 0.25);
  EXPECT_EQ(parse(minimal()).optimizer.weight_decay, 0);
}

TEST(StageZero, HasItsOwnRulesOfTheLossScale) {
  const JsonText json = minimal().set("fp16.enabled", "true").set("fp16.hysteresis", "3");
  const TrainConfig config = parse(json);
  EXPECT_TRUE(config.fp16.is_unpartitioned);
  EXPECT_THAT(config.notes, Contains("note: fp16.hysteresis: no effect at ZeRO stage 0, as in "
                                     "DeepSpeed: every overflow halves the scale"));
  EXPECT_FALSE(parse(JsonText(json).set("zero_optimization.stage", "1")).fp16.is_unpartitioned);
}

}  // namespace
}  // namespace sluice::config::test
