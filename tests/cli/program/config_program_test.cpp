// The commands below `sluice config`, and the flags that give values of the configuration.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "json_text.hpp"
#include "run_program.hpp"

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

TEST_F(ConfigProgram, ExplainShowsTheRowOfTheTable) {
  const std::string text = run_sluice({"config", "explain", "optimizer.params.betas"}).out;
  for (const char* part : {"optimizer.params.betas\n", "honoured, list, default [0.9, 0.999]",
                           "flag: --adam-beta1 B, --adam-beta2 B", "\"auto\": the default"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(run_sluice({"config", "explain", "lr"}).out, HasSubstr("optimizer.params.lr\n"));
  EXPECT_THAT(run_sluice({"config", "explain", "aio"}).out, HasSubstr("aio.queue_depth\n"));
  const ProgramResult unknown = run_sluice({"config", "explain", "queue_dept"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean \"queue_depth\"?"));
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

TEST_F(ConfigProgram, ConvertsTrainingArguments) {
  write_file(file("args.json"), R"({"output_dir": "/runs/a", "per_device_train_batch_size": 4,
      "gradient_accumulation_steps": 2, "learning_rate": 2e-05, "weight_decay": 0.01,
      "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_epsilon": 1e-08, "max_grad_norm": 0.7,
      "max_steps": 500, "warmup_steps": 50, "lr_scheduler_type": "cosine", "optim": "adamw_torch",
      "bf16": true, "fp16": false, "seed": 42, "save_strategy": "steps", "save_steps": 100,
      "logging_steps": 10, "group_by_length": true, "hub_token": null})");
  const ProgramResult result =
      run_sluice({"config", "convert", file("args.json"), "--out", file("ds.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("not carried over: group_by_length"));
  EXPECT_THAT(result.err, Not(HasSubstr("hub_token")));
  const ProgramResult check = run_sluice({"config", "check", file("ds.json"), "--json"});
  ASSERT_EQ(check.exit_code, 0) << check.err;
  const Json::Value values = parse_json(last_line(check.out))["values"];
  EXPECT_EQ(values["train_batch_size"].asInt(), 8);
  EXPECT_EQ(values["optimizer.params.lr"].asDouble(), 2e-5);
  EXPECT_EQ(values["optimizer.params.betas"][1].asDouble(), 0.95);
  EXPECT_EQ(values["sluice.no_decay"].asString(), "biases_and_norms");  // the Trainer's groups
  EXPECT_EQ(values["gradient_clipping"].asDouble(), 0.7);
  EXPECT_EQ(values["scheduler.type"].asString(), "WarmupCosineLR");
  EXPECT_EQ(values["scheduler.params.total_num_steps"].asInt(), 500);
  EXPECT_TRUE(values["bf16.enabled"].asBool());
  EXPECT_EQ(values["sluice.seed"].asInt(), 42);
  EXPECT_EQ(values["sluice.checkpoint_every"].asInt(), 100);
  const ProgramResult again =
      run_sluice({"config", "convert", file("args.json"), "--out", file("ds.json")});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("exists already"));
}

TEST_F(ConfigProgram, ConvertsTheTrainersOtherOptimizers) {
  for (const auto& [name, type] : {std::pair("sgd", "SGD"), std::pair("adagrad", "Adagrad")}) {
    write_file(file("args.json"), R"({"learning_rate": 0.5, "weight_decay": 0.0, "adam_beta1": 0.9,
        "adam_epsilon": 1e-08, "optim": ")" +
                                      std::string(name) + "\"}");
    const ProgramResult result = run_sluice({"config", "convert", file("args.json")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json::Value config = parse_json(result.out);
    EXPECT_EQ(config["optimizer"]["type"].asString(), type);
    EXPECT_EQ(config["optimizer"]["params"].getMemberNames(),
              (std::vector<std::string>{"lr", "weight_decay"}));
    EXPECT_FALSE(config["sluice"].isMember("no_decay"));
  }
}

// As transformers rounds: up.
TEST_F(ConfigProgram, ConvertMakesStepsOfAWarmupRatio) {
  write_file(file("args.json"), R"({"learning_rate": 2e-05, "max_steps": 40, "warmup_ratio": 0.03,
      "lr_scheduler_type": "linear"})");
  const ProgramResult result = run_sluice({"config", "convert", file("args.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(parse_json(result.out)["scheduler"]["params"]["warmup_num_steps"].asInt(), 2);
}

TEST_F(ConfigProgram, ConvertFillsTheDeepSpeedFileOfTheArguments) {
  write_file(file("args.json"), R"({"per_device_train_batch_size": 4, "learning_rate": 2e-05,
      "max_grad_norm": 1.0, "deepspeed": {"train_batch_size": "auto", "gradient_clipping": 0.5,
      "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}})");
  const ProgramResult result = run_sluice({"config", "convert", file("args.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value config = parse_json(result.out);
  EXPECT_EQ(config["zero_optimization"]["stage"].asInt(), 2);
  EXPECT_EQ(config["train_micro_batch_size_per_gpu"].asInt(), 4);
  EXPECT_FALSE(config.isMember("train_batch_size"));
  EXPECT_THAT(result.err, HasSubstr("gradient_clipping: the value of the arguments replaces"));
}

TEST_F(ConfigProgram, ConvertsAccelerate) {
  write_file(file("accelerate.yaml"), R"(compute_environment: LOCAL_MACHINE   # a comment
debug: false
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: nvme
  offload_optimizer_nvme_path: '/mnt/nvme'
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
mixed_precision: bf16
num_processes: 8
)");
  const ProgramResult result = run_sluice({"config", "convert", file("accelerate.yaml")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value config = parse_json(result.out);
  EXPECT_EQ(config["train_micro_batch_size_per_gpu"].asString(), "auto");
  EXPECT_EQ(config["gradient_accumulation_steps"].asInt(), 4);
  EXPECT_EQ(config["zero_optimization"]["stage"].asInt(), 3);
  EXPECT_EQ(config["zero_optimization"]["offload_optimizer"]["nvme_path"].asString(), "/mnt/nvme");
  EXPECT_FALSE(config["zero_optimization"].isMember("offload_param"));
  EXPECT_TRUE(config["bf16"]["enabled"].asBool());
  EXPECT_THAT(result.err, HasSubstr("num_processes: 8, here there is one rank"));
}

TEST_F(ConfigProgram, ConvertRefusesWhatItCannotKeep) {
  const auto message = [&](const std::string& text) {
    write_file(file("in"), text);
    const ProgramResult result = run_sluice({"config", "convert", file("in")});
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(message(R"({"learning_rate": 1e-4, "optim": "adafactor"})"),
              HasSubstr("optim: \"adafactor\" is not supported yet"));
  EXPECT_THAT(message(R"({"learning_rate": 1e-4, "lr_scheduler_type": "polynomial"})"),
              HasSubstr("lr_scheduler_type: \"polynomial\" has no like here"));
  EXPECT_THAT(message(R"({"learning_rate": 1e-4, "warmup_steps": 1e30})"),
              HasSubstr("warmup_steps: expected a whole number"));
  EXPECT_THAT(message(R"({"learning_rate": 1e-4, "bf16": "yes"})"),
              HasSubstr("bf16: expected true or false"));
  EXPECT_THAT(message(std::string(2'000'000, ' ')), HasSubstr("longer than 1 MiB"));
  EXPECT_THAT(message(R"({"learning_rate": 1e-4, "max_steps": 9, "warmup_ratio": 1e300})"),
              HasSubstr("warmup_ratio: expected a number from 0 to 1"));
  EXPECT_THAT(message("compute_environment: X\ngpu_ids:\n- 0\n"), HasSubstr("in:3: expected"));
  EXPECT_THAT(message("distributed_type: X\nmixed_precision: fp8\n"), HasSubstr("fp8"));
  EXPECT_THAT(message("{}"), HasSubstr("neither TrainingArguments"));
}

TEST_F(ConfigProgram, TakesBase64InPlaceOfAFile) {
  // {"train_batch_size": 8}
  const ProgramResult result = run_sluice({"config", "check", "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("train_batch_size +8\n"));
}

}  // namespace
}  // namespace sluice::test
