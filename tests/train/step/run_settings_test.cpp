// What a resumed run says of the checksums of its data.

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

}  // namespace
}  // namespace sluice::train
