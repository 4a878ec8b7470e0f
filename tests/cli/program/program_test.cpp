// The program as its users run it. train_program_test.cpp has the tests that train.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kExitUsage = 2;
constexpr int kExitDoesNotFit = 3;

class Help : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Help, AnswersWithAnExampleWithinASecond) {
  std::vector<std::string> arguments = GetParam();
  arguments.emplace_back("--help");
  const ProgramResult result = run_sluice(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("usage: sluice"));
  EXPECT_THAT(result.out, HasSubstr("example:\n  sluice "));
  EXPECT_EQ(result.err, "");
  EXPECT_LT(result.cpu_seconds, 1.0);
}
INSTANTIATE_TEST_SUITE_P(
    EveryCommand, Help,
    ::testing::Values(
        std::vector<std::string>{}, std::vector<std::string>{"train"},
        std::vector<std::string>{"plan"}, std::vector<std::string>{"report"},
        std::vector<std::string>{"generate"}, std::vector<std::string>{"export"},
        std::vector<std::string>{"doctor"}, std::vector<std::string>{"config"},
        std::vector<std::string>{"config", "check"}, std::vector<std::string>{"config", "keys"},
        std::vector<std::string>{"config", "resolve"},
        std::vector<std::string>{"config", "explain"}, std::vector<std::string>{"config", "schema"},
        std::vector<std::string>{"config", "convert"}, std::vector<std::string>{"nvme"},
        std::vector<std::string>{"nvme", "bench"}, std::vector<std::string>{"nvme", "tune"},
        std::vector<std::string>{"nvme", "verify"}, std::vector<std::string>{"nvme", "clean"},
        std::vector<std::string>{"launch"}));

TEST(Program, PrintsItsHelpWithoutArguments) {
  const ProgramResult bare = run_sluice({});
  EXPECT_EQ(bare.exit_code, 0);
  EXPECT_EQ(bare.out, run_sluice({"--help"}).out);
}

TEST(Program, TakesHelpAsACommandAndJsonBesideHelp) {
  EXPECT_EQ(run_sluice({"help"}).out, run_sluice({"--help"}).out);
  EXPECT_EQ(run_sluice({"help", "nvme", "tune"}).out, run_sluice({"nvme", "tune", "--help"}).out);
  EXPECT_EQ(run_sluice({"help", "trian"}).exit_code, kExitUsage);
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"--help", "--json"}, std::vector<std::string>{"--json", "--help"},
        std::vector<std::string>{"help", "--json"}}) {
    const ProgramResult result = run_sluice(line);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, run_sluice({"--help"}).out);
  }
  EXPECT_EQ(run_sluice({"--help", "--jsno"}).exit_code, kExitUsage);
}

TEST(Program, IndentsEveryLineOfAnExample) {
  EXPECT_THAT(run_sluice({"nvme", "tune", "--help"}).out,
              HasSubstr("\nexample:\n  sluice nvme tune /mnt/nvme --out tuned.json --html "
                        "tuned.html\n  sluice train --config ds.json"));
}

TEST(Program, HelpOfPlanSaysWhatPlanDoes) {
  const std::string help = run_sluice({"plan", "--help"}).out;
  for (const char* part :
       {"adds how much all N steps write", "nothing is written", "changes no plan",
        "tokens only by training", "--learning-rate, --lr LR"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_THAT(help, Not(HasSubstr("write steps.jsonl")));
  EXPECT_THAT(help, Not(HasSubstr("default 1000")));
  EXPECT_THAT(run_sluice({"train", "--help"}).out, HasSubstr("default 1000"));
}

TEST(Program, TellsItsVersion) {
  const ProgramResult result = run_sluice({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, ::testing::MatchesRegex("sluice [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Program, LoadsNoLibTorchToStart) {
  const ProgramResult result = run_sluice({"--version"}, {{"LD_TRACE_LOADED_OBJECTS", "1"}});
  EXPECT_THAT(result.out, HasSubstr("libstdc++"));
  EXPECT_THAT(result.out, Not(HasSubstr("libtorch")));
  EXPECT_THAT(result.out, Not(HasSubstr("libc10")));
}

TEST(Program, NamesTheNearestFlagForAnUnknownOne) {
  const ProgramResult result = run_sluice({"train", "--stesp", "3"});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err,
            "sluice: train: unknown flag \"--stesp\"; did you mean \"--steps\"? (sluice train "
            "--help lists what "
            "there is)\n");
}

TEST(Program, SaysWhichFileIsMissing) {
  const ProgramResult result =
      run_sluice({"train", "--config", "absent.json", "--model", "m.json", "--data", "text"});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_EQ(result.err, "sluice: --config: absent.json: there is no such file\n");
}

TEST(Program, ReportsUsageErrorsAsJsonWhenAskedTo) {
  const ProgramResult result = run_sluice({"export", "run", "--josn", "--json"});
  EXPECT_EQ(result.exit_code, kExitUsage);
  const Json::Value object = parse_json(last_line(result.out));
  EXPECT_EQ(object["exit_code"].asInt(), kExitUsage);
  EXPECT_THAT(object["error"].asString(), HasSubstr("--josn"));
}

TEST(ConfigCheck, ShowsAllTenMistakesAtOnceWithinASecond) {
  const TempDir directory;
  const std::string path = directory.file("ds.json");
  write_file(path, R"({
  "train_batch_size": 0,
  "gradient_clipping": "one",
  "gradient_acumulation_steps": 2,
  "steps_per_print": -1,
  "optimizer": {"type": "Adamw2", "params": {"lr": "fast", "betas": [0.9]}},
  "bf16": {"enabled": 1.5},
  "zero_optimization": {"stage": 7},
  "aio": {"queue_depth": 0, "block_size": 1000}
})");
  const ProgramResult result = run_sluice({"config", "check", path});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_LT(result.cpu_seconds, 1.0);
  int problems = 0;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);)
    problems += line.rfind(path + ":", 0) == 0 ? 1 : 0;  // as editors read it
  EXPECT_GE(problems, 10) << result.err;
  for (const char* key : {"train_batch_size", "gradient_clipping", "gradient_acumulation_steps",
                          "steps_per_print", "optimizer.type", "lr", "betas", "bf16.enabled",
                          "zero_optimization.stage", "aio.queue_depth", "aio.block_size"}) {
    EXPECT_THAT(result.err, HasSubstr(key));
  }
}

TEST(ConfigCheck, TakesSeveralFilesAndNamesTheOneThatIsMissing) {
  EXPECT_THAT(run_sluice({"config", "check", "--help"}).out,
              HasSubstr("usage: sluice config check FILE... [options]\n"));
  const TempDir directory;
  write_file(directory.file("ds.json"), kConfigJson);
  const ProgramResult result =
      run_sluice({"config", "check", directory.file("ds.json"), "extra.json"});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_EQ(result.err, "sluice: extra.json: there is no such file\n");
}

TEST(ConfigCheck, TellsAModelFromAConfigurationInOneLine) {
  const TempDir directory;
  const std::string model = directory.file("config.json"), ds = directory.file("ds.json");
  write_file(model, kModelJson);
  write_file(ds, kConfigJson);
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"config", "check", model},
        std::vector<std::string>{"config", "check", ds, model},
        std::vector<std::string>{"plan", "--config", model, "--model", model}}) {
    const ProgramResult result = run_sluice(line);
    EXPECT_EQ(result.exit_code, kExitUsage);
    EXPECT_EQ(result.err,
              "sluice: " + model +
                  ": this looks like a model's config.json (it has \"model_type\"), which --model "
                  "takes; expected a training configuration\n");
  }
}

TEST(ConfigCheck, PrintsWhatTheFileResolvesTo) {
  const TempDir directory;
  write_file(directory.file("ds.json"), kConfigJson);
  const ProgramResult result = run_sluice({"config", "check", directory.file("ds.json"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value object = parse_json(last_line(result.out));
  EXPECT_EQ(object["values"]["train_micro_batch_size_per_gpu"].asInt(), 2);
  EXPECT_EQ(object["values"]["optimizer.params.lr"].asDouble(), 0.0004);
  EXPECT_THAT(result.err, HasSubstr("no mistakes"));
}

TEST(ConfigKeys, ListsEveryKeyAsTextAndAsJson) {
  const ProgramResult text = run_sluice({"config", "keys"});
  const ProgramResult json = run_sluice({"config", "keys", "--json"});
  ASSERT_EQ(text.exit_code, 0);
  const Json::Value object = parse_json(last_line(json.out));
  ASSERT_GT(object["config"].size(), 20U);
  ASSERT_GT(object["model"].size(), 8U);
  for (const char* table : {"config", "model"}) {
    for (const Json::Value& key : object[table])
      EXPECT_THAT(text.out, HasSubstr(key["path"].asString()));
  }
}

TEST(Doctor, IsOneJsonObjectOnStandardOutput) {
  const ProgramResult result = run_sluice({"doctor", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
  EXPECT_LT(result.cpu_seconds, 1.0);
  const Json::Value object = parse_json(result.out);
  EXPECT_GT(object["machine"]["memory"]["total_bytes"].asUInt64(), 0U);
  EXPECT_GE(object["machine"]["cores"]["usable"].asUInt64(), 1U);
  EXPECT_EQ(object["devices"]["GPU"]["state"].asString(), "off");
  EXPECT_THAT(object["devices"]["io_uring"]["state"].asString(), ::testing::AnyOf("on", "off"));
  EXPECT_THAT(object["devices"]["libaio"]["state"].asString(), ::testing::AnyOf("on", "off"));
  EXPECT_FALSE(object["machine"]["cpu_adam"]["detail"].asString().empty());
  EXPECT_TRUE(object["drives"].isArray());
  EXPECT_TRUE(object["libraries"].isMember("LibTorch"));
  EXPECT_TRUE(object["libraries"].isMember("libaio"));
}

TEST(Doctor, SaysWhyTheOptimizersKernelIsOff) {
  const ProgramResult result = run_sluice({"doctor", "--json"}, {{"SLUICE_SIMD", "mmx"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value row = parse_json(result.out)["machine"]["cpu_adam"];
  EXPECT_EQ(row["state"].asString(), "off");
  EXPECT_THAT(row["detail"].asString(), HasSubstr("mmx"));
}

class Plan : public ::testing::Test {
 protected:
  Plan() {
    write_file(directory_.file("model.json"), kModelJson);
    write_file(directory_.file("ds.json"), kConfigJson);
  }
  ProgramResult plan(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"plan", "--config", directory_.file("ds.json"), "--model",
                                          directory_.file("model.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_sluice(arguments);
  }
  TempDir directory_;
};

TEST_F(Plan, PrintsTheTableAndOneJsonObject) {
  const ProgramResult result = plan({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value object = parse_json(last_line(result.out));
  EXPECT_EQ(object["state_bytes"].asUInt64(), 16 * object["parameters"].asUInt64());
  EXPECT_THAT(result.err, HasSubstr("device"));
}

TEST_F(Plan, EndsWithThreeWhenTheBudgetIsTooSmall) {
  write_file(directory_.file("ds.json"),
             R"({"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.0004}},
                 "bf16": {"enabled": true}, "zero_optimization": {"stage": 3},
                 "sluice": {"device_bytes": "4KiB", "host_bytes": "4KiB"}})");
  const ProgramResult result = plan({});
  EXPECT_EQ(result.exit_code, kExitDoesNotFit) << result.out << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("device"));
}

TEST_F(Plan, RefusesDataShorterThanOneSequence) {
  write_file(directory_.file("text"), "too short");
  const ProgramResult result = plan({"--data", directory_.file("text")});
  EXPECT_EQ(result.exit_code, kExitUsage) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("text"));
}

}  // namespace
}  // namespace sluice::test
