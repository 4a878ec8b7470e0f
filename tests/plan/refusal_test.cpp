// What a plan that does not fit says: one story, and changes that do fit.

#include <gtest/gtest.h>

#include <string>

#include "plans.hpp"

namespace sluice::plan {
namespace {

TEST(Refusal, RefusesWithWhatIsShortAndTwoChanges) {
  const std::string text = refusal(train_config(Device::nvme, Device::nvme, 8, 8),
                                   model_config(4, 512), roomy_machine());
  EXPECT_NE(text.find("device tier is short by"), std::string::npos) << text;
  EXPECT_NE(text.find("host tier is short by"), std::string::npos) << text;
  EXPECT_NE(text.find("1. set "), std::string::npos) << text;
  EXPECT_NE(text.find("2. set "), std::string::npos) << text;
}

TEST(Refusal, RefusesASpillWithoutADriveAndUnderStrict) {
  auto config = train_config(Device::cpu, Device::cpu, 256, 32);
  EXPECT_NE(refusal(config, model_config(8, 512), roomy_machine()).find("nvme_path"),
            std::string::npos);
  config = train_config(Device::nvme, Device::cpu, 256, 64);
  EXPECT_EQ(refusal(config, model_config(12, 512), roomy_machine()), "");
  config.sluice.strict = true;
  EXPECT_NE(refusal(config, model_config(12, 512), roomy_machine()).find("strict"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::plan
