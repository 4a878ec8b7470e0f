// The commands below `sluice config`, and the flags that give values of the configuration.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kAutoJson = R"({
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": 0.5,
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 3}}
})";

class ConfigProgram : public ::testing::Test {
 protected:
  ConfigProgram() { write_file(file("auto.json"), kAutoJson); }
  std::string file(const std::string& name) const { return directory_.file(name); }
  TempDir directory_;
};

TEST_F(ConfigProgram, FlagsFillAutoAndTheErrorNamesThem) {
  const ProgramResult bare = run_sluice({"config", "check", file("auto.json")});
  EXPECT_EQ(bare.exit_code, 2);
  for (const char* flag : {"--learning-rate LR", "--steps N", "--per-device-train-batch-size N"})
    EXPECT_THAT(bare.err, HasSubstr(flag));
  const ProgramResult filled = run_sluice({"config", "check", file("auto.json"), "--lr", "1e-4",
                                           "--steps", "70", "--per-device-train-batch-size", "4",
                                           "--set", "sluice.seed=9", "--bf16", "--json"});
  ASSERT_EQ(filled.exit_code, 0) << filled.err;
  const Json::Value object = parse_json(last_line(filled.out));
  EXPECT_EQ(object["values"]["optimizer.params.lr"].asDouble(), 1e-4);
  EXPECT_EQ(object["values"]["scheduler.params.total_num_steps"].asInt(), 70);
  EXPECT_EQ(object["values"]["train_batch_size"].asInt(), 4);
  EXPECT_EQ(object["values"]["sluice.seed"].asInt(), 9);
  EXPECT_TRUE(object["values"]["bf16.enabled"].asBool());
  EXPECT_THAT(filled.err, HasSubstr("no mistakes"));
}

TEST_F(ConfigProgram, FlagsAreCheckedWhereTheyAreGiven) {
  const auto message = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> line = {"config", "check", file("auto.json")};
    line.insert(line.end(), flags.begin(), flags.end());
    return run_sluice(line).err;
  };
  EXPECT_THAT(message({"--learning-rate", "fast"}),
              HasSubstr("--learning-rate: expected a number, found \"fast\""));
  EXPECT_THAT(message({"--per-device-train-batch-size", "0"}),
              HasSubstr("--per-device-train-batch-size: expected a whole number of at least 1"));
  EXPECT_THAT(message({"--set", "lr"}), HasSubstr("--set: expected KEY=VALUE"));
  EXPECT_THAT(message({"--set", "optimizer={\"type\":"}),
              HasSubstr("--set optimizer: the value begins as JSON and is not whole"));
  EXPECT_THAT(message({"--weight-decya", "1"}), HasSubstr("did you mean \"--weight-decay\"?"));
}

TEST_F(ConfigProgram, ChecksAnyNumberOfFilesAndCountsThoseWithMistakes) {
  write_file(file("ds.json"), kConfigJson);
  write_file(file("tuned.json"), R"({"aio": {"queue_depth": 7}})");
  const ProgramResult result = run_sluice({"config", "check", file("ds.json"), file("tuned.json"),
                                           file("auto.json"), file("ds.json"), "--json"});
  EXPECT_EQ(result.exit_code, 2);
  const Json::Value files = parse_json(last_line(result.out))["files"];
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0]["values"]["aio.queue_depth"].asInt(), 7);
  EXPECT_EQ(files[0]["files_over_it"][0].asString(), file("tuned.json"));
  EXPECT_THAT(files[1]["error"].asString(), HasSubstr("auto.json:2:3: "));
  EXPECT_EQ(files[2]["values"]["aio.queue_depth"].asInt(), 32);
  EXPECT_THAT(result.err, HasSubstr("3 configurations, 1 with mistakes"));
  // A path that is too long for a file is no file to put over the one before.
  const ProgramResult no_path =
      run_sluice({"config", "check", file("ds.json"), std::string(400, '!')});
  EXPECT_EQ(no_path.exit_code, 2) << no_path.err;
}

TEST_F(ConfigProgram, ChecksTheOtherFilesWhereOneIsMissing) {
  write_file(file("ds.json"), kConfigJson);
  const ProgramResult result =
      run_sluice({"config", "check", file("absent.json"), file("auto.json"), file("ds.json"), ""});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("absent.json: there is no such file"));
  EXPECT_THAT(result.err, HasSubstr("auto.json:2:3: "));
  EXPECT_THAT(result.err, HasSubstr("the name of a file is empty"));
  EXPECT_THAT(result.out, HasSubstr("4 configurations, 3 with mistakes"));
}

TEST_F(ConfigProgram, CheckMarksDefaults) {
  write_file(file("ds.json"), kConfigJson);
  const ProgramResult result = run_sluice({"config", "check", file("ds.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("gradient_clipping +1.0 +default\n"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("optimizer.params.lr +0.0004\n"));
}

TEST_F(ConfigProgram, ResolveSaysWhereEachValueComesFrom) {
  write_file(file("tuned.json"), R"({"aio": {"queue_depth": 7}})");
  const ProgramResult result =
      run_sluice({"config", "resolve", file("auto.json"), "--config", file("tuned.json"),
                  "--learning-rate", "1e-4", "--steps", "9", "--per-device-train-batch-size", "2",
                  "--max-grad-norm", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value values = parse_json(last_line(result.out))["values"];
  const auto origin = [&](const char* key) { return values[key]["origin"].asString(); };
  EXPECT_EQ(origin("optimizer.params.weight_decay"), file("auto.json") + ":4:59");
  EXPECT_EQ(origin("optimizer.params.lr"), "--learning-rate");
  EXPECT_EQ(origin("gradient_clipping"), "--max-grad-norm");
  EXPECT_EQ(origin("scheduler.params.total_num_steps"), "--steps");
  EXPECT_EQ(origin("train_batch_size"), "derived");
  EXPECT_EQ(origin("optimizer.params.eps"), "default");
  EXPECT_EQ(origin("sluice.threads.compute"), "planned");
  EXPECT_EQ(origin("aio.queue_depth"), file("tuned.json") + ":1:10");
  EXPECT_THAT(result.err, HasSubstr("1 of --max-grad-norm replaces 0.5 of the file"));
}

TEST_F(ConfigProgram, ResolveTellsTheTrainersValueForAutoFromADefault) {
  write_file(file("auto.json"), R"({"train_batch_size": 8, "optimizer": {"type": "AdamW",
      "params": {"lr": 0.5, "eps": "auto"}}, "scheduler": {"type": "WarmupLR",
      "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}}})");
  const ProgramResult result = run_sluice({"config", "resolve", file("auto.json"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value values = parse_json(last_line(result.out))["values"];
  const Json::Value& warmup = values["scheduler.params.warmup_num_steps"];
  EXPECT_EQ(warmup["value"].asInt(), 1);
  EXPECT_EQ(warmup["origin"].asString(), "auto");
  EXPECT_EQ(values["scheduler.params.warmup_max_lr"]["origin"].asString(), "derived");
  EXPECT_EQ(values["optimizer.params.eps"]["origin"].asString(), "default");
}

TEST_F(ConfigProgram, RatesAreDrawnAndPrinted) {
  write_file(file("ds.json"), R"({"train_batch_size": 8,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.0004}},
      "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 9e-4,
                                                   "cycle_first_step_size": 32}}})");
  const ProgramResult result = run_sluice({"config", "rates", file("ds.json"), "--steps", "65"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("scheduler: OneCycle"));
  EXPECT_THAT(result.out, HasSubstr("learning rate, in 1e-4"));
  EXPECT_THAT(result.out, HasSubstr("step  learning rate     beta1\n"));
  EXPECT_THAT(result.out, HasSubstr("   1         0.0001       0.8\n"));
  EXPECT_THAT(result.out, HasSubstr("--json has the rate of every step"));
  const ProgramResult json =
      run_sluice({"config", "rates", file("ds.json"), "--steps", "65", "--json"});
  const Json::Value object = parse_json(json.out);
  ASSERT_EQ(object["rates"].size(), 65U);
  ASSERT_EQ(object["betas"].size(), 65U);
  EXPECT_EQ(object["rates"][0].asDouble(), 1e-4);
  EXPECT_EQ(object["rates"][32].asDouble(), 1e-4 + (9e-4 - 1e-4) * 1.0);
  EXPECT_EQ(object["betas"][0][0].asDouble(), 0.8);
  EXPECT_EQ(object["betas"][0][1].asDouble(), 0.99);
}

TEST_F(ConfigProgram, RatesHaveAllDigitsAndTakeFlags) {
  write_file(file("ds.json"), R"({"train_batch_size": 8,
      "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
          "warmup_max_lr": "auto", "warmup_num_steps": 3, "warmup_type": "linear"}}})");
  const ProgramResult result =
      run_sluice({"config", "rates", file("ds.json"), "--lr", "0.1", "--steps", "12", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value rates = parse_json(result.out)["rates"];
  ASSERT_EQ(rates.size(), 12U);
  EXPECT_EQ(rates[2].asDouble(), 0.0 + 0.1 * (1.0 / 3.0));  // 17 digits
  EXPECT_EQ(rates[11].asDouble(), 0.0 + 0.1 * (2.0 / 9.0));
  // Without --steps, as many as the schedule has.
  write_file(file("own.json"), R"({"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR",
                                   "params": {"total_num_steps": 33}}})");
  EXPECT_EQ(
      parse_json(run_sluice({"config", "rates", file("own.json"), "--json"}).out)["rates"].size(),
      33U);
  EXPECT_EQ(run_sluice({"config", "rates", file("own.json"), "--steps", "10000001"}).exit_code, 2);
}

TEST_F(ConfigProgram, ExplainShowsTheRowOfTheTable) {
  const std::string text = run_sluice({"config", "explain", "optimizer.params.betas"}).out;
  for (const char* part : {"optimizer.params.betas\n", "honoured, list, default [0.9, 0.999]",
                           "flag: --adam-beta1 B, --adam-beta2 B", "\"auto\": the default"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(run_sluice({"config", "explain", "lr"}).out, HasSubstr("optimizer.params.lr\n"));
  EXPECT_THAT(run_sluice({"config", "explain", "aio"}).out, HasSubstr("aio.queue_depth\n"));
  // A section by its last name, a section with a row, and a name of other programs.
  EXPECT_THAT(run_sluice({"config", "explain", "offload_optimizer"}).out,
              HasSubstr("zero_optimization.offload_optimizer.device\n"));
  EXPECT_THAT(run_sluice({"config", "explain", "bf16"}).out,
              HasSubstr("keys of this section: enabled, "));
  EXPECT_THAT(run_sluice({"config", "explain", "grad_clip"}).out,
              HasSubstr("gradient_clipping\n    honoured"));
  const ProgramResult unknown = run_sluice({"config", "explain", "queue_dept"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean \"queue_depth\"?"));
  EXPECT_THAT(run_sluice({"config", "explain", "stage3_max_live"}).err,
              HasSubstr("did you mean \"stage3_max_live_parameters\"?"));
}

TEST_F(ConfigProgram, SchemaHasEveryKeyOfTheTable) {
  const ProgramResult result = run_sluice({"config", "schema"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value schema = parse_json(result.out);
  const Json::Value keys = parse_json(last_line(run_sluice({"config", "keys", "--json"}).out));
  for (const Json::Value& key : keys["config"]) {
    const std::string path = key["path"].asString();
    EXPECT_THAT(result.out, HasSubstr("\"" + path.substr(path.rfind('.') + 1) + "\":")) << path;
  }
  EXPECT_EQ(schema["$schema"].asString(), "https://json-schema.org/draft/2020-12/schema");
}

TEST_F(ConfigProgram, CheckShowsEachValueOfAParameterGroup) {
  write_file(file("ds.json"), R"({"train_batch_size": 8, "optimizer": {"type": "AdamW"}, "sluice":
      {"groups": [{"match": "*.bias", "weight_decay": 0}, {"match": ["a", "b"], "lr": 0.5}]}})");
  const ProgramResult check = run_sluice({"config", "check", file("ds.json")});
  ASSERT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, testing::ContainsRegex("sluice.groups.0.weight_decay +0"));
  EXPECT_THAT(check.out, testing::ContainsRegex("sluice.groups.1.match +.\"a\",\"b\"."));
  const ProgramResult json = run_sluice({"config", "check", file("ds.json"), "--json"});
  EXPECT_EQ(parse_json(last_line(json.out))["values"]["sluice.groups"].size(), 2U);
}

TEST_F(ConfigProgram, ExplainTakesAFlagForItsKey) {
  const ProgramResult key = run_sluice({"config", "explain", "optimizer.params.lr"});
  for (const char* flag : {"--learning-rate", "--lr"}) {
    const ProgramResult of_flag = run_sluice({"config", "explain", flag});
    ASSERT_EQ(of_flag.exit_code, 0) << of_flag.err;
    EXPECT_EQ(of_flag.out, key.out);
  }
  EXPECT_THAT(run_sluice({"config", "explain", "--adam-beta2"}).out,
              HasSubstr("optimizer.params.betas\n"));
  EXPECT_THAT(run_sluice({"config", "explain", "--epochs"}).out,
              HasSubstr("scheduler.params.total_num_steps\n"));
  EXPECT_THAT(run_sluice({"config", "explain"}).err, HasSubstr("config explain: missing KEY"));
  EXPECT_THAT(run_sluice({"config", "explain", "--help"}).out,
              HasSubstr("usage: sluice config explain KEY [options]"));
  EXPECT_THAT(run_sluice({"config", "explain", "--help"}).out, Not(HasSubstr("--learning-rate  ")));
}

TEST_F(ConfigProgram, CheckTakesEpochs) {
  write_file(file("ds.json"), R"({"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": "auto", "warmup_num_steps": 10}}})");
  const ProgramResult result = run_sluice({"config", "check", file("ds.json"), "--epochs", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("how many steps the epochs are is known where the data is read"));
  const ProgramResult steps =
      run_sluice({"config", "check", file("ds.json"), "--epochs", "3", "--steps", "70", "--json"});
  EXPECT_EQ(parse_json(steps.out)["values"]["scheduler.params.total_num_steps"].asInt(), 70);
  const auto refused = [&](const char* epochs) {
    const ProgramResult checked =
        run_sluice({"config", "check", file("ds.json"), "--epochs", epochs});
    EXPECT_EQ(checked.exit_code, 2);
    return checked.err;
  };
  EXPECT_THAT(refused("0"), HasSubstr("expected a whole number of at least 1, found \"0\""));
  EXPECT_THAT(refused("1.5"), HasSubstr("expected a whole number of at least 1, found \"1.5\""));
  EXPECT_THAT(refused("2000000000"), HasSubstr("expected at most 1,000,000,000, found"));
  EXPECT_THAT(refused("99999999999999999999"),
              HasSubstr("expected a whole number of at most 9223372036854775807, found"));
}

TEST_F(ConfigProgram, MessagesRepeatInputShortAndWithoutItsControlCharacters) {
  const std::string evil = "\x1b]0;owned\x07\x1b[2J\xc2\x9b";
  write_file(file("ds.json"), R"({"train_batch_size": 8})");
  const auto err = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"config", "check", file("ds.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run_sluice(arguments);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  const std::string long_text(1U << 16U, 'x');
  for (const std::string& bad : {evil, long_text}) {
    for (const std::vector<std::string>& more : {std::vector<std::string>{"--lr", bad},
                                                 {"--set", bad},
                                                 {"--set", bad + "=1"},
                                                 {"--set", "train_batch_size=" + bad},
                                                 {"--" + bad},
                                                 {bad},
                                                 {"--optimizer", bad}}) {
      const std::string message = err(more);
      EXPECT_LT(message.size(), 5000U) << more.front();
      EXPECT_EQ(message.find('\x1b'), std::string::npos) << more.front();
      EXPECT_EQ(message.find('\x07'), std::string::npos) << more.front();
      EXPECT_EQ(message.find("\xc2\x9b"), std::string::npos) << more.front();
    }
  }
  EXPECT_THAT(err({"--lr", evil}), HasSubstr("found \"\\x1b]0;owned\\x07\\x1b[2J\\x9b\""));
  EXPECT_THAT(err({"--lr", long_text}), HasSubstr(" more bytes)"));
}

TEST_F(ConfigProgram, TakesBase64InPlaceOfAFile) {
  // {"train_batch_size": 8}
  const ProgramResult result = run_sluice({"config", "check", "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("train_batch_size +8\n"));
}

}  // namespace
}  // namespace sluice::test
