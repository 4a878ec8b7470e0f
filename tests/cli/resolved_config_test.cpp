#include "config/resolved_config.hpp"

#include <gtest/gtest.h>
#include <json/json.h>

#include <map>
#include <set>

#include "sluice/config/key_table.hpp"

namespace sluice::cli {
namespace {

std::map<std::string, Json::Value> values_of(const std::string& text) {
  const auto values = resolved_values(config::parse_train_config(text, "test.json"));
  return {values.begin(), values.end()};
}

TEST(ResolvedValues, FillInWhatTheFileLeavesOut) {
  auto values = values_of(
      R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
                              "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}})");
  EXPECT_EQ(values["gradient_accumulation_steps"].asInt(), 4);
  EXPECT_EQ(values["sluice.device_bytes"].asString(), "auto");
  EXPECT_EQ(values["zero_optimization.offload_param.device"].asString(), "none");
  EXPECT_TRUE(values["steps_per_print"].isNull());
}

// Every key that has an effect is shown, where its section has one.
TEST(ResolvedValues, HaveEveryHonouredKey) {
  std::map<std::string, Json::Value> all;
  for (const char* text : {R"({"train_batch_size": 8, "fp16": {"enabled": true},
            "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}},
            "zero_optimization": {"stage": 3,
              "offload_param": {"device": "nvme", "nvme_path": "/a"},
              "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}},
            "sluice": {"checkpoint_dir": "/c", "io": {"drive_weights": [1]}, "drive_endurance": "1TB"}})",
                           R"({"train_batch_size": 8,
            "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9}}})",
                           R"({"train_batch_size": 8, "optimizer": {"type": "SGD"},
            "sluice": {"groups": [{"match": "*.bias", "lr": 0.5}]}})",
                           R"({"train_batch_size": 8, "optimizer": {"type": "Adagrad"}})",
                           R"({"train_batch_size": 8, "tensorboard": {"enabled": true},
            "csv_monitor": {"enabled": true}, "flops_profiler": {"enabled": true},
            "comms_logger": {"enabled": true}})"}) {
    for (const auto& [key, value] : values_of(text)) all[key] = value;
  }
  for (const char* scheduler :
       {R"("WarmupLR")", R"("WarmupCosineLR", "params": {"total_num_steps": 9})",
        R"("OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2})", R"("LRRangeTest")",
        R"("ConstantLR")", R"("LinearLR")", R"("PolynomialLR")",
        R"("StepLR", "params": {"step_size": 9})",
        R"("MultiStepLR", "params": {"milestones": [9]})",
        R"("CosineAnnealingLR", "params": {"T_max": 9})",
        R"("CosineAnnealingWarmRestarts", "params": {"T_0": 9})"}) {
    for (const auto& [key, value] : values_of(R"({"train_batch_size": 8, "scheduler": {"type": )" +
                                              std::string(scheduler) + "}}"))
      all[key] = value;
  }
  // These show in other values: of sections, of Adam's type, and of the thread counts.
  const std::set<std::string> shown_elsewhere = {"bf16", "optimizer.params.adam_w_mode",
                                                 "activation_checkpointing.cpu_checkpointing",
                                                 "sluice.threads"};
  for (const config::KeyInfo& key : config::key_table()) {
    const std::string path(key.path);
    if (key.fate != config::Fate::honoured || shown_elsewhere.count(path) > 0) continue;
    EXPECT_TRUE(all.count(path) > 0) << path;
  }
}

// A parameter of another optimizer is not shown: the file could not give it.
TEST(ResolvedValues, AreThoseOfTheOptimizer) {
  const auto lion = values_of(R"({"train_batch_size": 8, "optimizer": {"type": "lion"}})");
  EXPECT_EQ(lion.at("optimizer.type").asString(), "Lion");
  EXPECT_EQ(lion.count("optimizer.params.betas"), 1U);
  for (const char* other : {"eps", "momentum", "amsgrad", "maximize"})
    EXPECT_EQ(lion.count(std::string("optimizer.params.") + other), 0U) << other;
}

TEST(ResolvedValues, HaveAnOrigin) {
  const config::TrainConfig config = config::parse_train_config(
      R"({"train_batch_size": 8, "zero_optimization": {"stage": 1, "cpu_offload": true},
          "optimizer": {"type": "AdamW", "params": {"torch_adam": true}}})",
      "ds.json");
  std::map<std::string, std::string> origins;
  for (const auto& [key, value] : resolved_values(config))
    origins[key] = origin_of(config, key, value);
  EXPECT_EQ(origins["train_batch_size"], "ds.json:1:2");
  EXPECT_EQ(origins["train_micro_batch_size_per_gpu"], "derived");
  EXPECT_EQ(origins["zero_optimization.offload_optimizer.device"], "ds.json:1:59");
  EXPECT_EQ(origins["optimizer.params.weight_decay"], "ds.json:2:53");
  EXPECT_EQ(origins["gradient_clipping"], "default");
  EXPECT_EQ(origins["sluice.device_bytes"], "planned");
}

TEST(ResolvedValues, ShowWhatTheFileSays) {
  auto values = values_of(R"({
    "train_batch_size": 2, "bf16": {"enabled": true},
    "optimizer": {"type": "Adam", "params": {"lr": 0.002, "adam_w_mode": false}},
    "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 90, "warmup_num_steps": 9}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt"}},
    "sluice": {"host_bytes": "80%", "device_bytes": "1MiB", "durability": "power"}})");
  EXPECT_EQ(values["optimizer.params.lr"].asDouble(), 0.002);
  EXPECT_EQ(values["scheduler.params.total_num_steps"].asInt(), 90);
  EXPECT_EQ(values["zero_optimization.offload_optimizer.nvme_path"].asString(), "/mnt");
  EXPECT_EQ(values["sluice.host_bytes"].asString(), "80%");
  EXPECT_EQ(values["sluice.device_bytes"].asUInt64(), 1048576U);
  EXPECT_EQ(values["sluice.durability"].asString(), "power");
}

TEST(ResolvedValues, ShowTheScheduleInUse) {
  EXPECT_EQ(values_of(R"({"train_batch_size": 1, "bf16": {"enabled": true},
                          "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}})")
                ["scheduler.type"]
                    .asString(),
            "none: the rate is constant");
  auto values = values_of(R"({"train_batch_size": 1, "bf16": {"enabled": true},
                              "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
                              "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}})");
  EXPECT_EQ(values["scheduler.type"].asString(), "WarmupLR");
  EXPECT_EQ(values["scheduler.params.warmup_num_steps"].asInt(), 5);
}

TEST(ResolvedValues, ShowTheLossScaleOfFp16AsItIsInUse) {
  auto off = values_of(R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}})");
  EXPECT_FALSE(off["fp16.enabled"].asBool());
  EXPECT_FALSE(off.contains("fp16.loss_scale"));
  auto dynamic = values_of(R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"},
                               "fp16": {"enabled": true, "hysteresis": 4}})");
  EXPECT_TRUE(dynamic["fp16.enabled"].asBool());
  EXPECT_EQ(dynamic["fp16.initial_scale_power"].asInt(), 16);
  EXPECT_EQ(dynamic["fp16.hysteresis"].asInt(), 4);
  auto fixed = values_of(R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"},
                             "fp16": {"enabled": true, "loss_scale": 128}})");
  EXPECT_EQ(fixed["fp16.loss_scale"].asDouble(), 128);
  EXPECT_FALSE(fixed.contains("fp16.hysteresis"));
}

}  // namespace
}  // namespace sluice::cli
