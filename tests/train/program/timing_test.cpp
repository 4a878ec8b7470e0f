// Whatever takes how long, the results are the same; and a drive that becomes slow is named.

#include <gtest/gtest.h>

#include "deep_run.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

// LibTorch's threads are part of the bits.
Outcome run(TrainFolder& folder, TrainSetup setup, int steps, const std::vector<std::string>& more,
            const Environment& environment) {
  setup.sluice_keys += "\"threads\": {\"compute\": 2}, ";
  return outcome_of(folder, setup, steps, more, environment);
}

TEST(Timing, RandomDelaysInEveryHandoverChangeNoBit) {
  const int steps = usual_or_deep(20, 50);
  TrainFolder folder;
  for (const double clipping : {0.0, 1.0}) {
    TrainSetup setup;
    setup.clipping = clipping;
    setup.accumulation = 2;
    const Outcome calm = run(folder, setup, steps, kResident, {});
    ASSERT_EQ(calm.losses.size(), static_cast<std::size_t>(steps));
    int seed = 1;
    const std::pair<const char*, const char*> kinds[] = {
        {"cpu", "\"activations\": \"recompute\", "},
        {"nvme", "\"activations\": \"offload\", "},
        {"nvme", "\"cache_bytes\": \"50%\", \"commit_every\": 4, "}};
    for (const auto& [optimizer, keys] : kinds) {
      setup.optimizer_device = setup.param_device = optimizer;
      setup.sluice_keys = keys;
      SCOPED_TRACE(std::string(optimizer) + ", " + keys + "clipping " + std::to_string(clipping) +
                   ", seed " + std::to_string(seed));
      const Outcome delayed = run(folder, setup, steps, {},
                                  {{"LD_PRELOAD", SLUICE_HOSTILE_TIMING},
                                   {"SLUICE_TEST_DELAYS", std::to_string(20261122 + seed++)}});
      EXPECT_EQ(delayed.losses, calm.losses);
      EXPECT_TRUE(delayed.weights == calm.weights) << "the exported weights differ";
    }
  }
}

TEST(Timing, ADriveThatBecomesTenTimesSlowerIsNamedAndChangesNothingElse) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys = "\"io\": {\"backend\": \"threads\"}, ";
  setup.host_bytes = "64MiB";
  setup.micro_batch = setup.accumulation = 1;
  constexpr int kTransfers = 300;  // of a step, about
  write_file(folder.model(), R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4,
                                 "n_positions": 16, "vocab_size": 256})");
  const int fast = usual_or_deep(22, 35);
  const int steps = usual_or_deep(32, 50);
  const Outcome usual = run(folder, setup, steps, {}, {});
  EXPECT_NE(folder.report_text("report").find("\"notices\":[]"), std::string::npos);
  const Outcome slowed = run(folder, setup, steps, {},
                             {{"LD_PRELOAD", SLUICE_HOSTILE_TIMING},
                              {"SLUICE_TEST_SLOW_DRIVE", std::to_string(fast * kTransfers)}});
  const std::string report = folder.report_text("report");
  EXPECT_NE(report.find("the drive of " + folder.swap() + " moves "), std::string::npos) << report;
  EXPECT_EQ(slowed.losses.size(), static_cast<std::size_t>(steps));
  EXPECT_EQ(slowed.losses, usual.losses);
  EXPECT_TRUE(slowed.weights == usual.weights);
}

}  // namespace
}  // namespace sluice::test
