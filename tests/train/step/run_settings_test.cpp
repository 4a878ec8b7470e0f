// The warnings of a resumed run about its settings and the checksums of its data.

#include "run/run_settings.hpp"

#include <gtest/gtest.h>

#include "captured_log.hpp"
#include "sluice/base/error.hpp"

namespace sluice::train {
namespace {

const models::RunSettings kNow = {{"training data", "9 tokens, sample 1"},
                                  {"held-out data", "nothing"}};
const models::RunSettings kChecksums = {{"checksum of the training data", "aa"}};

models::RunSettings with(models::RunSettings settings, const std::string& name,
                         const std::string& value) {
  settings[name] = value;
  return settings;
}

TEST(CompareChecksums, ReportsAnotherChecksumOfEqualSamples) {
  const auto saved = with(kNow, "checksum of the training data", "bb");
  EXPECT_THROW(compare_checksums(saved, kNow, kChecksums, /*strict=*/true), InvalidArgument);
  const test::CapturedLog log;
  compare_checksums(saved, kNow, kChecksums, /*strict=*/false);
  EXPECT_TRUE(log.contains("another checksum of the training data: was bb; is aa"));
}

TEST(CompareChecksums, SaysNothingOfEqualOnesOldStatesAndDataAlreadyReported) {
  const test::CapturedLog log;
  compare_checksums(with(kNow, "checksum of the training data", "aa"), kNow, kChecksums, true);
  compare_checksums(kNow, kNow, kChecksums, true);  // a state of an older version
  compare_checksums({}, kNow, kChecksums, true);
  const auto other = with(with(kNow, "checksum of the training data", "bb"), "training data", "8");
  compare_checksums(other, kNow, kChecksums, false);
  EXPECT_FALSE(log.contains("resumed with another"));
}

TEST(CompareSettings, NamesAConstantRateOnceAndDataWithoutArticle) {
  const std::string at = " at updates 1, 10, 100 ... 100,000";
  const std::string constant = "0.1, 0.1, 0.1, 0.1, 0.1, 0.1" + at;
  const test::CapturedLog log;
  compare_settings({{"learning rate", constant}, {"held-out data", "nothing"}},
                   {{"learning rate", "0.1, 0.2, 0.2, 0.2, 0.2, 0.2" + at},
                    {"held-out data", "10 % of the training data"}},
                   /*strict=*/false);
  EXPECT_TRUE(log.contains("resumed with another learning rate: was 0.1" + at + "; is 0.1, 0.2, "));
  EXPECT_TRUE(log.contains("resumed with other held-out data: was nothing; is 10 %"));
}

}  // namespace
}  // namespace sluice::train
