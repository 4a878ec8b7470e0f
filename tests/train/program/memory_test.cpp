// What a run holds: within its budgets, as planned, and no more with more layers.

#include <gtest/gtest.h>

#include "train_support.hpp"

namespace sluice::test {
namespace {

std::uint64_t number(const Json::Value& value) {
  EXPECT_TRUE(value.isUInt64()) << value;
  return value.asUInt64();
}

Json::Value report_of(const std::string& model, const TrainSetup& setup, int steps) {
  TrainFolder folder;
  write_file(folder.model(), model);
  folder.set(setup);
  const ProgramResult result = folder.train("report", steps);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return test::report_of(folder);
}

std::string model_json(int layers, int width, int positions) {
  return R"({"model_type": "gpt2", "vocab_size": 256, "n_head": 4, "n_layer": )" +
         std::to_string(layers) + ", \"n_embd\": " + std::to_string(width) +
         ", \"n_positions\": " + std::to_string(positions) + "}";
}

TEST(Memory, PeaksStayWithinPlanAndPlanWithinBudgets) {
  for (const char* device : {"nvme", "cpu"}) {
    TrainSetup setup;
    setup.optimizer_device = setup.param_device = device;
    setup.device_bytes = "48MiB";
    setup.host_bytes = "96MiB";
    const Json::Value report = report_of(model_json(4, 256, 128), setup, 3);
    for (const char* tier : {"device", "host", "nvme"}) {
      SCOPED_TRACE(std::string(device) + " " + tier);
      const std::uint64_t peak = number(report["peak_bytes"][tier]);
      const std::uint64_t planned = number(report["planned_bytes"][tier]);
      EXPECT_LE(peak, planned);
      // The plan is close: what is not used could have been.
      EXPECT_GE(peak * 10, planned * 7);
      if (std::string(tier) == "nvme") continue;
      EXPECT_LE(planned, number(report["budget_bytes"][tier]));
    }
  }
}

// Resident memory beyond that of the same program on a tiny model is what the budgets allow,
// whatever the number of layers.
TEST(Memory, ResidentBytesDoNotGrowWithTheNumberOfLayers) {
  TrainSetup setup;
  setup.micro_batch = 1;
  setup.device_bytes = "40MiB";
  setup.host_bytes = "32MiB";
  const std::uint64_t idle = number(report_of(model_json(1, 64, 32), setup, 2)["rss_peak_bytes"]);
  for (const int layers : {4, 24}) {
    const std::uint64_t peak =
        number(report_of(model_json(layers, 256, 64), setup, 3)["rss_peak_bytes"]);
    constexpr std::uint64_t kMiB = 1U << 20U;
    EXPECT_LE(peak, idle + (40 + 32 + 64) * kMiB) << layers << " layers";
  }
}

}  // namespace
}  // namespace sluice::test
