#include "config/resolved_config.hpp"

#include <gtest/gtest.h>
#include <json/json.h>

#include <map>

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
