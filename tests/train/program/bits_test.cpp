// Offloaded equals resident, bit for bit: the loss and gradient norm of every step, and the
// weights.

#include <gtest/gtest.h>

#include "train_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 12;

Outcome run(TrainFolder& folder, const TrainSetup& setup,
            const std::vector<std::string>& more = {}) {
  return outcome_of(folder, setup, kSteps, more);
}

TEST(Bits, OffloadedToNvmeEqualsResident) {
  TrainFolder folder;
  const Outcome resident = run(folder, {}, kResident);
  expect_same(run(folder, {}), resident);
}

TEST(Bits, EveryPlacementEqualsResident) {
  TrainFolder folder;
  const Outcome resident = run(folder, {}, kResident);
  const std::pair<const char*, const char*> placements[] = {{"none", "none"}, {"cpu", "none"},
                                                            {"cpu", "cpu"},   {"nvme", "none"},
                                                            {"nvme", "cpu"},  {"cpu", "nvme"}};
  for (const auto& [optimizer, param] : placements) {
    SCOPED_TRACE(std::string("optimizer ") + optimizer + ", param " + param);
    TrainSetup setup;
    setup.optimizer_device = optimizer;
    setup.param_device = param;
    expect_same(run(folder, setup), resident);
  }
}

TEST(Bits, TightBudgetsThatSpillEverythingEqualResident) {
  TrainFolder folder;
  const Outcome resident = run(folder, {}, kResident);
  TrainSetup setup;
  folder.set(setup);
  const Json::Value least = plan_of(folder)["least_bytes"];
  setup.device_bytes = least["device"].asString();
  setup.host_bytes = least["host"].asString();
  setup.sluice_keys = "\"strict\": false, ";
  expect_same(run(folder, setup), resident);
}

TEST(Bits, WithoutOverlapAndWithOtherThreadsOfTheOptimizerNothingChanges) {
  TrainFolder folder;
  const Outcome resident = run(folder, {}, kResident);
  TrainSetup setup;
  setup.sluice_keys = "\"overlap\": false, ";
  expect_same(run(folder, setup), resident);
  setup.sluice_keys = "\"threads\": {\"optimizer\": 1, \"io\": 2}, ";
  expect_same(run(folder, setup), resident);
  setup.zero_keys =
      "\"stage3_prefetch_bucket_size\": 0, \"stage3_max_live_parameters\": 1, "
      "\"stage3_max_reuse_distance\": 0, ";
  expect_same(run(folder, setup), resident);
}

// Without clipping updates begin as gradients arrive; a limit that clips nothing makes them wait
// for the norm.
TEST(Bits, UpdatesDuringTheBackwardPassAreTheSame) {
  TrainFolder folder;
  TrainSetup setup;
  setup.clipping = 1e9;
  const Outcome waited = run(folder, setup, kResident);
  setup.clipping = 0;
  expect_same(run(folder, setup, kResident), waited);
  for (const auto& [optimizer, param] :
       std::vector<std::pair<const char*, const char*>>{{"nvme", "nvme"}, {"cpu", "cpu"}}) {
    SCOPED_TRACE(std::string("optimizer ") + optimizer);
    setup.optimizer_device = optimizer;
    setup.param_device = param;
    setup.sluice_keys = "";
    expect_same(run(folder, setup), waited);
    setup.sluice_keys = "\"overlap\": false, ";
    expect_same(run(folder, setup), waited);
  }
}

// Without a device budget, weights and gradients in host memory are used there; a gradient that
// shares a slot is summed in it.
TEST(Bits, HomesOfTheHostChangeNothing) {
  TrainFolder folder;
  for (const std::string keys : {"", "\"overlap\": false, ", "\"micro_batches_per_pass\": 1, ",
                                 "\"activations\": \"recompute\", "}) {
    for (const double clipping : {1.0, 0.0}) {
      TrainSetup setup;
      setup.sluice_keys = keys;
      setup.clipping = clipping;
      const Outcome moving = run(folder, setup);
      setup.device_bytes = "auto";
      for (const auto& [optimizer, param] : std::vector<std::pair<const char*, const char*>>{
               {"cpu", "cpu"}, {"nvme", "cpu"}, {"cpu", "nvme"}}) {
        SCOPED_TRACE(std::string(optimizer) + ", " + param + ", " + keys +
                     std::to_string(clipping));
        setup.optimizer_device = optimizer;
        setup.param_device = param;
        expect_same(run(folder, setup), moving);
      }
    }
  }
}

// Two slots that updates on a drive hold: gradients are summed beside them, and copied.
TEST(Bits, GradientsBesideTheirSlotsAreTheSame) {
  TrainFolder folder;
  write_file(folder.model(),
             R"({"model_type": "gpt2", "n_layer": 6, "n_embd": 64, "n_head": 4, "n_positions": 32,
                 "vocab_size": 256})");
  TrainSetup setup;
  setup.clipping = 0;
  setup.param_device = "cpu";
  setup.device_bytes = "auto";
  const Outcome roomy = run(folder, setup);
  setup.host_bytes = "2400KiB";
  folder.set(setup);
  const std::string choices = plan_of(folder)["choices"].toStyledString();
  EXPECT_NE(choices.find("updates on NVMe hold both slots"), std::string::npos) << choices;
  expect_same(run(folder, setup), roomy);
}

TEST(Bits, KeptRecomputedAndOffloadedActivationsAreTheSame) {
  TrainFolder folder;
  write_file(folder.model(),
             R"({"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 32,
                 "vocab_size": 256, "embd_pdrop": 0.1, "resid_pdrop": 0.1})");
  TrainSetup setup;
  setup.sluice_keys = "\"activations\": \"recompute\", ";
  const Outcome recomputed = run(folder, setup, kResident);
  // Weights are released after forward and gathered elsewhere for backward.
  setup.zero_keys = "\"stage3_max_reuse_distance\": 0, \"stage3_param_persistence_threshold\": 0, ";
  for (const std::string activations : {"keep", "recompute", "offload", "auto"}) {
    SCOPED_TRACE(activations);
    setup.sluice_keys = "\"activations\": \"" + activations + "\", ";
    expect_same(run(folder, setup), recomputed);
    expect_same(run(folder, setup, kResident), recomputed);
  }
  setup.sluice_keys = "\"activations\": \"keep\", \"overlap\": false, ";
  expect_same(run(folder, setup), recomputed);
}

TEST(Bits, SettingsOfTheDriveFromASecondConfigurationChangeNothing) {
  TrainFolder folder;
  const Outcome usual = run(folder, {});
  // As `sluice nvme tune` writes it.
  write_file(folder.path("tuned.json"),
             R"({"aio": {"block_size": 65536, "queue_depth": 3, "intra_op_parallelism": 2},
                 "sluice": {"io": {"backend": "threads", "reads_per_write": 1}}})");
  folder.clear_swap();
  folder.set({});
  const ProgramResult tuned =
      folder.train("report", kSteps, {"--config", folder.path("tuned.json")});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_EQ(column(folder, "report", "loss"), usual.losses);
  EXPECT_EQ(column(folder, "report", "grad_norm"), usual.norms);
  EXPECT_NE(folder.report_text("report").find("I/O by threads"), std::string::npos);
}

TEST(Bits, Fp32WithoutClippingEqualsResident) {
  TrainFolder folder;
  TrainSetup setup;
  setup.bf16 = false;
  setup.clipping = 0;
  setup.accumulation = 1;
  const Outcome resident = run(folder, setup, kResident);
  expect_same(run(folder, setup), resident);
}

TEST(Bits, DropoutMasksDependOnSeedStepUnitAndMicroBatchOnly) {
  TrainFolder folder;
  write_file(folder.model(),
             R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 32,
                 "vocab_size": 256, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1,
                 "tie_word_embeddings": false})");
  const Outcome resident = run(folder, {}, kResident);
  expect_same(run(folder, {}), resident);
}

}  // namespace
}  // namespace sluice::test
