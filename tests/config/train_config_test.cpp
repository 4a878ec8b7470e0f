#include "sluice/config/train_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.hpp"
#include "message_of.hpp"

namespace sluice::config::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

JsonText batch(const std::vector<std::pair<std::string, std::string>>& values) {
  return JsonText(values).set("optimizer.type", "\"AdamW\"");
}

struct Batch {
  std::int64_t train, micro, accumulation;
  bool operator==(const Batch&) const = default;
};
Batch batch_of(const JsonText& json, int world_size) {
  const TrainConfig config = parse(json, world_size);
  return {config.train_batch_size, config.micro_batch_size, config.gradient_accumulation_steps};
}

constexpr const char* kTB = "train_batch_size";
constexpr const char* kMB = "train_micro_batch_size_per_gpu";
constexpr const char* kGAS = "gradient_accumulation_steps";

TEST(BatchSizes, AreDerivedFromThoseGiven) {
  const Batch all{48, 4, 6};
  EXPECT_EQ(batch_of(batch({{kTB, "48"}, {kMB, "4"}, {kGAS, "6"}}), 2), all);
  EXPECT_EQ(batch_of(batch({{kTB, "48"}, {kMB, "4"}}), 2), all);
  EXPECT_EQ(batch_of(batch({{kTB, "48"}, {kGAS, "6"}}), 2), all);
  EXPECT_EQ(batch_of(batch({{kMB, "4"}, {kGAS, "6"}}), 2), all);
  EXPECT_EQ(batch_of(batch({{kTB, "48"}}), 2), (Batch{48, 24, 1}));
  EXPECT_EQ(batch_of(batch({{kMB, "4"}}), 2), (Batch{8, 4, 1}));
}

TEST(BatchSizes, ThatDoNotMultiplyAreRefused) {
  const auto message = [](const JsonText& json, int world_size) {
    return shown(problems_of(json, world_size));
  };
  EXPECT_THAT(message(batch({{kTB, "48"}, {kMB, "4"}, {kGAS, "5"}}), 2),
              HasSubstr("train_batch_size: must be micro batch x accumulation "
                        "steps x ranks: 48 is not 4 x 5 x 2"));
  EXPECT_THAT(message(batch({{kTB, "33"}, {kMB, "17"}}), 2),
              HasSubstr("33 is less than one micro batch of 17 on each of 2 ranks"));
  EXPECT_THAT(message(batch({{kTB, "5"}}), 2), HasSubstr("5 is not 2 x 1 x 2"));
  EXPECT_THAT(message(batch({{kTB, "1"}, {kGAS, "2"}}), 1),
              HasSubstr("1 is less than 2 accumulation steps"));
  EXPECT_THAT(message(batch({{kGAS, "2"}}), 1),
              HasSubstr("gradient_accumulation_steps: train_batch_size or "
                        "train_micro_batch_size_per_gpu is required"));
  EXPECT_THAT(message(batch({}), 1), HasSubstr("train_batch_size or"));
  EXPECT_THAT(message(batch({{kMB, "1e9"}, {kGAS, "1e9"}}), 2'000'000'000),
              HasSubstr("more than 1,000,000,000"));
  EXPECT_THAT(message(batch({{kTB, "0"}}), 1), HasSubstr("expected integer in [1, 1e9], found 0"));
}

TEST(BatchSizes, AutoIsNotGuessed) {
  EXPECT_THAT(shown(problems_of(batch({{kTB, "\"auto\""}}))),
              HasSubstr("\"auto\" is filled in by the Hugging Face Trainer"));
}

TEST(BatchSizes, NeedAtLeastOneRank) {
  EXPECT_THAT(sluice::test::message_of<InvalidArgument>([] { parse(minimal(), 0); }),
              HasSubstr("world size of 0"));
}

TEST(TrainConfig, NumbersMayBeWrittenWithExponentOrPoint) {
  const TrainConfig config =
      parse(batch({{kTB, "1.6e1"}, {kMB, "4.0"}})
                .set("zero_optimization.sub_group_size", "5e8")
                .set("zero_optimization.stage3_max_live_parameters", "500000000.0"));
  EXPECT_EQ(config.gradient_accumulation_steps, 4);
  EXPECT_EQ(config.zero.sub_group_size, 500'000'000U);
  EXPECT_EQ(config.zero.max_live_parameters, 500'000'000U);
  EXPECT_THAT(shown(problems_of(batch({{kTB, "1.5"}}))), HasSubstr("found 1.5 (number)"));
  EXPECT_THAT(shown(problems_of(batch({{kTB, "\"8\""}}))), HasSubstr("found \"8\" (string)"));
  EXPECT_THAT(shown(problems_of(batch({{kTB, "8"}, {"sluice.seed", "1e19"}}))),
              HasSubstr("expected integer >= 0, found 1e19 (number)"));
}

TEST(Optimizer, ThatTheFileLacksIsAdamWWithANote) {
  for (const JsonText& json :
       {JsonText().set(kTB, "8"), JsonText({{kTB, "8"}, {"optimizer", "null"}})}) {
    const TrainConfig config = parse(json);
    EXPECT_EQ(config.optimizer.type, OptimizerType::adamw);
    EXPECT_EQ(config.optimizer.lr, 0.001);
    EXPECT_EQ(config.optimizer.weight_decay, 0);
    EXPECT_THAT(config.notes,
                ElementsAre(HasSubstr("note: optimizer: the file has none, since the program that "
                                      "trains makes it: AdamW with its defaults, lr 0.001")));
  }
  EXPECT_THAT(shown(problems_of(JsonText({{kTB, "8"}, {"optimizer", "{}"}}))),
              HasSubstr("optimizer.type: required"));
}

TEST(Optimizer, AdamMeansAdamWUnlessItsModeSaysOtherwise) {
  const auto type = [](const char* name, const char* mode) {
    JsonText json = minimal().set("optimizer.type", name);
    if (mode != nullptr) json.set("optimizer.params.adam_w_mode", mode);
    return parse(json).optimizer.type;
  };
  EXPECT_EQ(type("\"Adam\"", nullptr), OptimizerType::adamw);
  EXPECT_EQ(type("\"adam\"", "true"), OptimizerType::adamw);
  EXPECT_EQ(type("\"ADAM\"", "false"), OptimizerType::adam);
  EXPECT_EQ(type("\"AdamW\"", nullptr), OptimizerType::adamw);
  EXPECT_THAT(shown(problems_of(minimal().set("optimizer.params.adam_w_mode", "false"))),
              HasSubstr("false contradicts the type AdamW"));
}

TEST(Optimizer, OtherTypesAreRefusedByName) {
  EXPECT_THAT(shown(problems_of(minimal().set("optimizer.type", "\"Muon\""))),
              HasSubstr("\"Muon\" is not supported yet"));
  EXPECT_THAT(shown(problems_of(minimal().set("optimizer.type", "\"AdmaW\""))),
              HasSubstr("unknown optimizer \"AdmaW\"; did you mean \"AdamW\"?"));
}

TEST(Optimizer, BetasAreTwoNumbersBelowOne) {
  for (const char* betas : {"[0.9]", "[0.9, 1]", "[0.9, \"0.99\"]", "[0.9, -0.1]", "[0, 0, 0]"}) {
    EXPECT_THAT(shown(problems_of(minimal().set("optimizer.params.betas", betas))),
                HasSubstr("expected two numbers in [0, 1)"))
        << betas;
  }
}

TEST(Optimizer, MaxGradNormPointsToGradientClipping) {
  EXPECT_THAT(shown(problems_of(minimal().set("optimizer.params.max_grad_norm", "1.0"))),
              HasSubstr("optimizer.params.max_grad_norm: DeepSpeed refuses it too: write "
                        "gradient_clipping at the top level instead"));
}

TEST(Offload, NeedsItsStage) {
  const auto offload = [](const char* section, const char* stage) {
    return shown(
        problems_of(minimal()
                        .set("zero_optimization.stage", stage)
                        .set(std::string("zero_optimization.") + section + ".device", "\"cpu\"")));
  };
  EXPECT_EQ(offload("offload_optimizer", "1"), "");
  EXPECT_THAT(offload("offload_optimizer", "0"),
              HasSubstr("needs zero_optimization.stage 1 or more, which is 0"));
}

TEST(Offload, OfWeightsHasNoEffectBelowStage3AsInDeepSpeed) {
  for (const char* device : {"\"cpu\"", "\"nvme\""}) {
    for (const char* stage : {"0", "1", "2"}) {
      const TrainConfig config =
          parse(minimal()
                    .set("zero_optimization.stage", stage)
                    .set("zero_optimization.offload_param.nvme_path", "\"/d\"")
                    .set("zero_optimization.offload_param.device", device));
      EXPECT_EQ(config.zero.offload_param.device, OffloadConfig::Device::none) << stage;
      EXPECT_THAT(config.notes,
                  testing::Contains(HasSubstr("note: zero_optimization.offload_param.device: no "
                                              "effect at ZeRO stage " +
                                              std::string(stage))));
    }
  }
  const TrainConfig third = parse(minimal()
                                      .set("zero_optimization.stage", "3")
                                      .set("zero_optimization.offload_param.device", "\"cpu\""));
  EXPECT_EQ(third.zero.offload_param.device, OffloadConfig::Device::cpu);
}

TEST(Offload, AWrongStageIsReportedOnce) {
  EXPECT_EQ(problems_of(minimal()
                            .set("zero_optimization.stage", "\"three\"")
                            .set("zero_optimization.offload_param.device", "\"cpu\""))
                .size(),
            1U);
}

TEST(Offload, ToNvmeNeedsAPath) {
  JsonText json = minimal()
                      .set("zero_optimization.stage", "3")
                      .set("zero_optimization.offload_param.device", "\"nvme\"");
  EXPECT_THAT(shown(problems_of(json)), HasSubstr("offload_param.nvme_path: required"));
  json.set("zero_optimization.offload_param.nvme_path", "\"\"");
  EXPECT_THAT(shown(problems_of(json)), HasSubstr("offload_param.nvme_path: required"));
  json.set("zero_optimization.offload_param.nvme_path", "\"/d\"");
  EXPECT_THAT(parse(json).zero.offload_param.directories, ElementsAre("/d"));
  json.set("zero_optimization.offload_param.nvme_path", "\"-d\"");
  EXPECT_THAT(parse(json).zero.offload_param.directories,
              ElementsAre("./-d"));  // "-d" would be a flag
}

TEST(Offload, KeysOfNvmeAreNotedAsWithoutEffectElsewhere) {
  const TrainConfig config =
      parse(minimal()
                .set("zero_optimization.stage", "2")
                .set("zero_optimization.offload_optimizer.device", "\"cpu\"")
                .set("zero_optimization.offload_optimizer.nvme_path", "\"/d\""));
  EXPECT_TRUE(config.zero.offload_optimizer.directories.empty());
  EXPECT_THAT(config.notes, ElementsAre("note: zero_optimization.offload_optimizer.nvme_path: no "
                                        "effect unless the device is nvme"));
}

TEST(Offload, DeprecatedFormsAreMapped) {
  const TrainConfig config = parse(minimal()
                                       .set("zero_optimization.stage", "3")
                                       .set("zero_optimization.cpu_offload", "true")
                                       .set("zero_optimization.cpu_offload_param", "true"));
  EXPECT_EQ(config.zero.offload_optimizer.device, OffloadConfig::Device::cpu);
  EXPECT_EQ(config.zero.offload_param.device, OffloadConfig::Device::cpu);
  EXPECT_THAT(config.notes,
              ElementsAre("mapped: zero_optimization.cpu_offload: deprecated; true means "
                          "offload_optimizer {\"device\": \"cpu\"}",
                          "mapped: zero_optimization.cpu_offload_param: deprecated; true means "
                          "offload_param {\"device\": \"cpu\"}"));
  EXPECT_THAT(shown(problems_of(minimal().set("zero_optimization.cpu_offload", "true"))),
              HasSubstr("zero_optimization.cpu_offload: needs zero_optimization.stage 1 or more"));
  EXPECT_THAT(shown(problems_of(minimal()
                                    .set("zero_optimization.stage", "1")
                                    .set("zero_optimization.cpu_offload", "false")
                                    .set("zero_optimization.offload_optimizer.device", "\"cpu\""))),
              HasSubstr("cpu_offload: deprecated, and offload_optimizer is given as well"));
}

TEST(ZeroOptimization, AsABoolIsStageOneOrNone) {
  EXPECT_EQ(parse(minimal().set("zero_optimization", "true")).zero.stage, 1);
  const TrainConfig off = parse(minimal().set("zero_optimization", "false"));
  EXPECT_EQ(off.zero.stage, 0);
  EXPECT_THAT(off.notes, ElementsAre(HasSubstr("mapped: zero_optimization: true means")));
}

TEST(ZeroOptimization, AutoMeansTheDefaultAndIsNoted) {
  const TrainConfig config =
      parse(minimal()
                .set("zero_optimization.stage3_prefetch_bucket_size", "\"auto\"")
                .set("bf16.enabled", "\"auto\"")
                .set("fp16.loss_scale", "\"auto\"")
                .set("zero_optimization.offload_optimizer", "\"auto\""));
  EXPECT_EQ(config.zero.prefetch_bucket_size, 50'000'000U);
  EXPECT_FALSE(config.bf16);
  EXPECT_THAT(config.notes,
              ElementsAre("note: bf16.enabled: \"auto\" means the default, false (or give --bf16)",
                          "note: fp16.loss_scale: \"auto\" means the default, 0",
                          "note: zero_optimization.offload_optimizer: \"auto\" means the default",
                          "note: zero_optimization.stage3_prefetch_bucket_size: \"auto\" means the "
                          "default, 5e7"));
}

TEST(Bf16, HasAnOldNameInWhichMessagesAreWritten) {
  EXPECT_TRUE(parse(minimal().set("bfloat16.enabled", "true")).bf16);
  EXPECT_THAT(shown(problems_of(minimal().set("bfloat16.enabled", "1"))),
              HasSubstr("bfloat16.enabled: expected bool, found 1 (number)"));
}

TEST(DisabledSections, AreAcceptedWithWhateverTheyHold) {
  const TrainConfig config = parse(minimal()
                                       .set("fp16.enabled", "false")
                                       .set("fp16.loss_scale_window", "7")
                                       .set("tensorboard.output_path", "\"/logs\"")
                                       .set("amp", R"({"enabled": false, "opt_level": "O1"})")
                                       .set("autotuning", "{}"));
  EXPECT_TRUE(config.notes.empty());
  EXPECT_THAT(shown(problems_of(minimal().set("fp16.loss_scale_windows", "7"))),
              HasSubstr("did you mean \"loss_scale_window\"?"));
  EXPECT_THAT(shown(problems_of(minimal().set("fp16.loss_scale_window", "\"x\""))),
              HasSubstr("expected integer in [1, 1e15]"));
}

ByteBudget host_budget(const std::string& json) {
  return parse(minimal().set("sluice.host_bytes", json)).sluice.host_bytes;
}

TEST(ByteBudget, IsBytesPercentOrAutomatic) {
  EXPECT_EQ(host_budget("\"auto\"").kind, ByteBudget::Kind::automatic);
  EXPECT_EQ(host_budget("4096").kind, ByteBudget::Kind::bytes);
  EXPECT_EQ(host_budget("4096").value, 4096U);
  EXPECT_EQ(host_budget("\"64MiB\"").value, 64U << 20U);
  EXPECT_EQ(host_budget("\"1.5GB\"").value, 1'500'000'000U);
  EXPECT_EQ(host_budget("\"80%\"").kind, ByteBudget::Kind::percent);
  EXPECT_EQ(host_budget("\"80%\"").value, 80U);
}

TEST(ByteBudget, RefusesWhatIsNotOne) {
  for (const char* bad :
       {"0", "-1", "1.5", "\"0\"", "\"0%\"", "\"101%\"", "\"%\"", "\"1.5%\"", "\"-5%\"",
        "\"4294967297%\"", "\"lots\"", "\"\"", "\"99999999999TiB\"", "true", "null", "[1]"}) {
    const auto problems = problems_of(minimal().set("sluice.host_bytes", bad));
    ASSERT_EQ(problems.size(), 1U) << bad;
    EXPECT_EQ(problems[0].key_path, "sluice.host_bytes") << bad;
  }
}

TEST(Sluice, ThreadsAreAutoOrAnObject) {
  EXPECT_FALSE(parse(minimal().set("sluice.threads", "\"auto\"")).sluice.threads.io.has_value());
  EXPECT_EQ(parse(minimal().set("sluice.threads.io", "3")).sluice.threads.io, 3);
  EXPECT_THAT(shown(problems_of(minimal().set("sluice.threads", "4"))),
              HasSubstr("sluice.threads: expected object or one of auto, found 4 (number)"));
  EXPECT_THAT(shown(problems_of(minimal().set("sluice.threads.compute", "0"))),
              HasSubstr("expected integer in [1, 4096], found 0"));
}

TEST(Sluice, CheckpointsNeedADirectory) {
  EXPECT_THAT(shown(problems_of(minimal().set("sluice.checkpoint_every", "10"))),
              HasSubstr("sluice.checkpoint_every: needs a directory"));
  // Without checkpoint_every one is written at the end, where nothing else would survive the run.
  EXPECT_THAT(parse(minimal().set("sluice.checkpoint_dir", "\"/c\"").set("sluice.keep", "1")).notes,
              ElementsAre());
  EXPECT_THAT(parse(minimal().set("sluice.keep", "1")).notes,
              ElementsAre("note: sluice.keep: no effect unless checkpoint_dir is set"));
}

TEST(Sluice, PassesHaveEquallyManyMicroBatches) {
  const auto with = [](const char* per_pass) {
    return batch({{kTB, "12"}, {kGAS, "6"}}).set("sluice.micro_batches_per_pass", per_pass);
  };
  EXPECT_EQ(parse(with("3")).sluice.passes.each, 3);
  EXPECT_THAT(shown(problems_of(with("4"))),
              HasSubstr("must divide gradient_accumulation_steps, which is 6, found 4"));
}

TEST(Sluice, TheLastPassMayHaveMoreMicroBatches) {
  const auto with = [](const char* per_pass, const char* last) {
    return batch({{kTB, "20"}, {kGAS, "10"}})
        .set("sluice.micro_batches_per_pass", per_pass)
        .set("sluice.last_pass_micro_batches", last);
  };
  EXPECT_EQ(parse(with("2", "6")).sluice.passes.last, 6);
  EXPECT_EQ(parse(with("3", "4")).sluice.passes.last, 4) << "two passes of 3 before";
  EXPECT_EQ(parse(with("5", "5")).sluice.passes.last, 5);
  EXPECT_EQ(parse(with("4", "10")).sluice.passes.last, 10) << "the only pass";
  for (const char* wrong : {"1", "3", "12"}) {
    EXPECT_THAT(shown(problems_of(with("2", wrong))),
                HasSubstr("must leave a multiple of micro_batches_per_pass, 2, of the 10 of "
                          "gradient_accumulation_steps"))
        << wrong;
  }
  EXPECT_THAT(shown(problems_of(minimal().set("sluice.last_pass_micro_batches", "1"))),
              HasSubstr("needs micro_batches_per_pass beside it"));
  EXPECT_THAT(shown(problems_of(with("2", "4").set("sluice.activations", "\"keep\""))),
              HasSubstr("computes activations again"));
}

TEST(Sluice, ADeviceIsNamed) {
  using Kind = ComputeDevice::Kind;
  const auto device_of = [](const std::string& value) {
    return parse(JsonText(minimal()).set("sluice.device", value)).sluice.device;
  };
  EXPECT_EQ(device_of("\"auto\"").kind, Kind::automatic);
  EXPECT_EQ(device_of("\"host\"").kind, Kind::host);
  EXPECT_EQ(device_of("\"cuda\"").kind, Kind::cuda);
  EXPECT_FALSE(device_of("\"cuda\"").index.has_value());
  EXPECT_EQ(device_of("\"cuda:12\"").index, 12);
  for (const std::string wrong : {"\"gpu\"", "\"cuda:\"", "\"cuda:x\"", "\"cuda:-1\"",
                                  "\"cuda:99999\"", "\"CUDA\"", "\"\""}) {
    EXPECT_THAT(shown(problems_of(JsonText(minimal()).set("sluice.device", wrong))),
                testing::HasSubstr("expected \"auto\", \"host\", \"cuda\" or \"cuda:1\""))
        << wrong;
  }
}

TEST(Aio, BlocksAreMultiplesOfAPage) {
  EXPECT_THAT(shown(problems_of(minimal().set("aio.block_size", "5000"))),
              HasSubstr("aio.block_size: expected a multiple of 4096 bytes"));
}

TEST(Aio, OnlyIoUringHasPollingForRequests) {
  const auto polling = [](const std::string& backend) {
    return minimal().set("sluice.io.submit_polling", "true").set("sluice.io.backend", backend);
  };
  EXPECT_THAT(shown(problems_of(polling("\"libaio\""))),
              HasSubstr("sluice.io.submit_polling: only io_uring has it"));
  EXPECT_TRUE(parse(polling("\"io_uring\"")).sluice.io.submit_polling);
  EXPECT_TRUE(parse(polling("\"auto\"")).sluice.io.submit_polling);
}

}  // namespace
}  // namespace sluice::config::test
