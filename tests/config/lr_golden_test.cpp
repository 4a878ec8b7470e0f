// Learning rates beside those of DeepSpeed's and torch's own objects, which
// tests/peers/schedules.py wrote to lr_golden.json. scripts/test_peers.sh compares with the objects
// themselves.
#include <gtest/gtest.h>
#include <json/json.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "sluice/config/lr_schedule.hpp"

namespace sluice::config::test {
namespace {

Json::Value golden_cases() {
  std::ifstream file(SLUICE_LR_GOLDEN);
  Json::Value root;
  file >> root;
  return root["cases"];
}

TrainConfig config_of(const Json::Value& entry) {
  Json::StreamWriterBuilder writer;
  writer["precision"] = 17;
  return parse_train_config(Json::writeString(writer, entry["config"]), "golden.json");
}

double hex(const Json::Value& text) {
  return std::strtod(text.asCString(), nullptr);
}

// A cosine, logarithm or power may differ in its last bit between processors, since the C library
// chooses its code by them. Where the cosine is near -1, at 1e-3 of the highest rate, that bit is
// 1e-13 of the rate; a hundred steps of a recursion add up to less than 1e-12.
constexpr double kLibm = 1e-12;

TEST(LearningRate, IsThatOfDeepSpeedAndTorchInHundredSteps) {
  const Json::Value cases = golden_cases();
  ASSERT_GE(cases.size(), 31U);
  for (const Json::Value& entry : cases) {
    const TrainConfig config = config_of(entry);
    ASSERT_EQ(entry["rates"].size(), 100U);
    for (int step = 1; step <= 100; ++step) {
      const double expected = hex(entry["rates"][step - 1]);
      const double found = learning_rate(config, step);
      const double tolerance = entry["libm"].asBool() ? kLibm * config.optimizer.lr : 0;
      EXPECT_LE(std::abs(found - expected), tolerance)
          << entry["name"].asString() << ", step " << step << ": " << found << " is not "
          << expected;
    }
  }
}

TEST(LearningRate, CyclesTheBetasAsDeepSpeedDoes) {
  int cycled = 0;
  for (const Json::Value& entry : golden_cases()) {
    const TrainConfig config = config_of(entry);
    for (int step = 1; step <= 100; ++step) {
      const Betas betas = betas_of_step(config, step);
      const bool is_cycled = !entry["betas"].isNull();
      EXPECT_EQ(betas.beta1, is_cycled ? hex(entry["betas"][step - 1][0]) : 0.9);
      EXPECT_EQ(betas.beta2, is_cycled ? hex(entry["betas"][step - 1][1]) : 0.95);
      cycled += is_cycled && betas.beta1 != 0.9 && betas.beta2 == 0.99 ? 1 : 0;
    }
  }
  EXPECT_GT(cycled, 300);
}

TEST(LearningRates, AreThoseOfSingleStepsInAnyOrder) {
  for (const Json::Value& entry : golden_cases()) {
    const TrainConfig config = config_of(entry);
    LearningRates rates(config);
    // Forwards, resumed in the middle, back, and far ahead.
    std::vector<std::int64_t> steps;
    for (int step = 1; step <= 100; ++step) steps.push_back(step);
    steps.insert(steps.end(), {37, 38, 39, 100, 1, 2, 5'000, 5'001, 4'999, 100'000, 3});
    for (const std::int64_t step : steps)
      EXPECT_EQ(rates.at(step), learning_rate(config, step))
          << entry["name"].asString() << ", step " << step;
  }
}

}  // namespace
}  // namespace sluice::config::test
