// sluice config convert.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ConvertProgram : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return directory_.file(name); }
  TempDir directory_;
};

TEST_F(ConvertProgram, ConvertsTrainingArguments) {
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

TEST_F(ConvertProgram, ConvertsTheTrainersOtherOptimizers) {
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
TEST_F(ConvertProgram, ConvertMakesStepsOfAWarmupRatio) {
  write_file(file("args.json"), R"({"learning_rate": 2e-05, "max_steps": 40, "warmup_ratio": 0.03,
      "lr_scheduler_type": "linear"})");
  const ProgramResult result = run_sluice({"config", "convert", file("args.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(parse_json(result.out)["scheduler"]["params"]["warmup_num_steps"].asInt(), 2);
}

TEST_F(ConvertProgram, ConvertKeepsWhatTheArgumentsSayOfTheData) {
  write_file(file("args.json"), R"({"learning_rate": 2e-05, "max_steps": -1,
      "dataloader_drop_last": true, "num_train_epochs": 3.0, "tf32": true,
      "lr_scheduler_type": "linear"})");
  const ProgramResult result = run_sluice({"config", "convert", file("args.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value config = parse_json(result.out);
  EXPECT_EQ(config["dataloader_drop_last"], Json::Value(true));
  EXPECT_EQ(config["sluice"]["tf32"], Json::Value(true));
  EXPECT_EQ(config["scheduler"]["params"]["total_num_steps"].asString(), "auto");
  EXPECT_THAT(result.err, HasSubstr("num_train_epochs: give --epochs 3 to sluice train"));
  EXPECT_THAT(result.err, Not(HasSubstr("not carried over")));
  write_file(file("half.json"), R"({"learning_rate": 2e-05, "num_train_epochs": 0.5})");
  EXPECT_THAT(run_sluice({"config", "convert", file("half.json")}).err,
              HasSubstr("num_train_epochs: 0.5 is no whole number of epochs: give --steps"));
}

TEST_F(ConvertProgram, ConvertTakesTheTrainersDefaultScheduleAndNamesTheSteps) {
  write_file(file("args.json"), R"({"learning_rate": 1e-3, "warmup_steps": 10, "max_steps": 200})");
  const ProgramResult result = run_sluice({"config", "convert", file("args.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value scheduler = parse_json(result.out)["scheduler"];
  EXPECT_EQ(scheduler["type"].asString(), "WarmupDecayLR");
  EXPECT_EQ(scheduler["params"]["warmup_num_steps"].asInt(), 10);
  EXPECT_EQ(scheduler["params"]["total_num_steps"].asInt(), 200);
  EXPECT_THAT(result.err, HasSubstr("max_steps: give --steps 200 to sluice train"));
}

TEST_F(ConvertProgram, ConvertRefusesWhatWouldTrainAnotherModel) {
  write_file(file("args.json"), R"({"learning_rate": 1e-3, "adafactor": true})");
  const ProgramResult adafactor = run_sluice({"config", "convert", file("args.json")});
  EXPECT_EQ(adafactor.exit_code, 2);
  EXPECT_THAT(adafactor.err, HasSubstr("adafactor: is not supported"));
  write_file(file("axolotl.yaml"), "base_model: gpt2\nlearning_rate: 0.001\nmicro_batch_size: 2\n");
  const ProgramResult axolotl = run_sluice({"config", "convert", file("axolotl.yaml")});
  EXPECT_EQ(axolotl.exit_code, 2);
  EXPECT_THAT(axolotl.err, HasSubstr("base_model is no key of TrainingArguments"));
}

TEST_F(ConvertProgram, ConvertRefusesKeysThatAreGivenTwiceAndNamesTheFile) {
  write_file(file("args.json"), R"({"learning_rate": 2e-05, "seed": 1, "seed": 2})");
  const ProgramResult twice = run_sluice({"config", "convert", file("args.json")});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, HasSubstr("Duplicate key: 'seed'"));
  write_file(file("a.yaml"),
             "compute_environment: X\nmixed_precision: bf16\nmixed_precision: no\n");
  EXPECT_THAT(run_sluice({"config", "convert", file("a.yaml")}).err,
              HasSubstr("a.yaml:3: the key mixed_precision is given a second time"));
  write_file(file("bad.json"), R"({"learning_rate": -1})");
  const ProgramResult bad = run_sluice({"config", "convert", file("bad.json")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("bad.json: its value for optimizer.params.lr: expected number in "
                                 "[0, 1e10], found -1"));
  EXPECT_THAT(bad.err, Not(HasSubstr("the converted file")));
}

TEST_F(ConvertProgram, ConvertFillsTheDeepSpeedFileOfTheArguments) {
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

TEST_F(ConvertProgram, ConvertsAccelerate) {
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
tpu_env: []
fsdp_config: {}
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
  EXPECT_THAT(result.err, HasSubstr("num_processes: 8: start as many ranks"));
}

TEST_F(ConvertProgram, ConvertSaysThatAConfigurationIsNoFileOfArguments) {
  write_file(file("ds.json"), "// ours\n{\"train_batch_size\": 8}\n");
  const ProgramResult result = run_sluice({"config", "convert", file("ds.json")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("ds.json: neither TrainingArguments"));
}

TEST_F(ConvertProgram, ConvertRefusesWhatItCannotKeep) {
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
  EXPECT_THAT(message(R"({"learning_rate": )" + std::string(5000, '[')),
              HasSubstr("in: not a JSON object: it is nested too deeply"));
  EXPECT_THAT(message(R"({"learning_rate": 1e-4, "max_steps": 9, "warmup_ratio": 1e300})"),
              HasSubstr("warmup_ratio: expected a number from 0 to 1"));
  EXPECT_THAT(message("compute_environment: X\ngpu_ids:\n- 0\n"), HasSubstr("in:3: expected"));
  EXPECT_THAT(message("distributed_type: X\nmixed_precision: fp8\n"), HasSubstr("fp8"));
  EXPECT_THAT(message("{}"), HasSubstr("neither TrainingArguments"));
}

}  // namespace
}  // namespace sluice::test
