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

TEST(CompareSettings, NamesTheRatesThatDifferAndDataWithoutArticle) {
  const std::string at = " at updates 1, 10, 100 ... 100,000";
  const auto said = [&](const std::string& before, const std::string& now) {
    const test::CapturedLog log;
    compare_settings({{"learning rate", before}, {"held-out data", "nothing"}},
                     {{"learning rate", now}, {"held-out data", "10 % of the training data"}},
                     /*strict=*/false);
    EXPECT_TRUE(log.contains("resumed with other held-out data: was nothing; is 10 %"));
    return log.messages().back().text;
  };
  const std::string with = "resumed with another learning rate: ";
  const std::string decays = "0, 7e-4, 5e-4, 1e-7, 1e-7, 1e-7" + at;
  EXPECT_EQ(said(decays, "0, 7e-4, 6e-4, 1e-7, 1e-7, 1e-7" + at),
            with + "was 5e-4; is 6e-4 at update 100");
  const std::string constant = "0.1, 0.1, 0.1, 0.1, 0.1, 0.1";
  EXPECT_EQ(
      said(constant + at, "0.1, 0.2, 0.2, 0.3, 0.3, 0.3" + at),
      with + "was 0.1; is 0.2, 0.2, 0.3, 0.3, 0.3 at updates 10, 100, 1,000, 10,000, 100,000");
  const std::string betas = constant + at + ", with beta1 0.6, 0.6, 0.6, 0.6, 0.6, ";
  EXPECT_EQ(said(betas + "0.6", betas + "0.7"), with + "beta1 was 0.6; is 0.7 at update 100,000");
  EXPECT_EQ(said(constant + at, betas + "0.6"),
            with + "was " + constant + at + "; is " + betas + "0.6");
}

}  // namespace
}  // namespace sluice::train
