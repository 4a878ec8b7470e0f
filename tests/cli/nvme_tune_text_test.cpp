// The text of `sluice nvme tune` about its measurements, without measuring.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <json/json.h>

#include <sstream>

#include "json_text.hpp"
#include "nvme/tune/tune_text.hpp"
#include "nvme/tune/tuned_config.hpp"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two block sizes and three depths; one of the six settings was not measured.
TuneOutcome some_outcome() {
  TuneOutcome outcome;
  for (const std::uint32_t block : {65536U, 131072U}) {
    for (const unsigned depth : {1U, 2U, 4U}) {
      const double rate = 1e9 * depth * (block / 65536.0) * 4;
      const bool measured = block != 131072U || depth != 4;
      outcome.surface.push_back({{block, depth},
                                 measured ? nvme::TuneRates{rate, rate, rate} : nvme::TuneRates{},
                                 measured ? 1 : 0,
                                 {}});
    }
  }
  outcome.choice.point = outcome.surface[4];  // 128 KiB x 2
  outcome.swap = {{1, {1e9}}, {3, {2e9}}};
  outcome.reads_per_write = 3;
  outcome.backend = "threads";
  return outcome;
}

TEST(TuneText, LinesUpTheColumnWithTheMark) {
  const std::string text = tune_text(some_outcome());
  EXPECT_EQ(text.substr(0, text.find("write GB/s")),
            "read GB/s  depth 1      2       4\n"
            " 64.0 KiB     4.00   8.00   16.00\n"
            "  128 KiB     8.00  16.00*      -\n\n")
      << text;
}

TEST(TuneText, SaysHowMuchTimeThereWasFor) {
  TuneOutcome outcome = some_outcome();
  EXPECT_THAT(tune_text(outcome),
              HasSubstr("\nmeasured 5 of 6 settings, the best ones once; more seconds measure more "
                        "(*: chosen, -: not measured)\n"));
  outcome.finished = true;
  outcome.choice.point.rounds = 9;
  EXPECT_THAT(tune_text(outcome),
              HasSubstr("\nmeasured 5 of 6 settings, the best ones 9 times (*"));
}

TEST(TuneText, SaysHowTheChoiceComparesWithTheDefault) {
  TuneOutcome outcome = some_outcome();
  EXPECT_THAT(tune_text(outcome), Not(HasSubstr("default"))) << "it is not among the settings";
  outcome.surface.push_back({{256U << 10U, 32}, {5e9, 6e9, 7e9}, 1, {}});
  const nvme::TunePoint usual = outcome.surface.back();
  const nvme::TunePoint other = outcome.choice.point;

  outcome.choice = {usual, {}, {}};
  EXPECT_THAT(tune_text(outcome), HasSubstr("\nthe default, blocks of 256 KiB, depth 32, stays: no "
                                            "time to compare others with it\n"));
  outcome.choice = {usual, other.setting, {1.01, 1, 1.02, 0.99, 1.03}};
  outcome.choice.point.last_means.resize(8);
  EXPECT_THAT(
      tune_text(outcome),
      HasSubstr("\nthe default, blocks of 256 KiB, depth 32, stays: the best other setting, "
                "blocks of 128 KiB, depth 2, gains 1.0 % (90 % interval -1.0 % to 3.0 %) "
                "in 8 rounds side by side, not clearly more than 2 %\n"));
  outcome.choice.gain.interval_end = 1.2;
  EXPECT_THAT(tune_text(outcome), HasSubstr("the drive's speed moves"));
  outcome.choice = {other, other.setting, {1.08, 1, 1.2, 1.04, 1.12}};
  outcome.choice.point.last_means.resize(8);
  EXPECT_THAT(tune_text(outcome),
              HasSubstr("\nchosen: blocks of 128 KiB, depth 2, 3 reads in a row, threads: read "
                        "16.00, write 16.00, mixed 16.00 GB/s\nover the default, blocks of "
                        "256 KiB, depth 32, it gains 8.0 % (90 % interval 4.0 % to 12.0 %) in 8 "
                        "rounds side by side\n"));
}

TEST(TuneText, SaysWhatPollingGains) {
  TuneOutcome outcome = some_outcome();
  EXPECT_THAT(tune_text(outcome), HasSubstr("only io_uring has it"));
  outcome.unpolled = {2e9, 2e9};
  outcome.polled = {3e9, 3e9};
  outcome.submit_polling = true;
  EXPECT_THAT(tune_text(outcome), HasSubstr("3.00 GB/s, without: 2.00 GB/s; ratio 1.50 (90 % "
                                            "interval 1.50 to 1.50): on"));
  const NvmeTuneArguments arguments;
  EXPECT_TRUE(test::parse_json(tuned_config(arguments, outcome))["sluice"]["io"]["submit_polling"]
                  .asBool());
  outcome.submit_polling = false;
  const auto io_of = [&] {
    return test::parse_json(tuned_config(arguments, outcome))["sluice"]["io"];
  };
  ASSERT_TRUE(io_of().isMember("submit_polling")) << "an earlier configuration may have it";
  EXPECT_FALSE(io_of()["submit_polling"].asBool());
  outcome.polled.clear();
  EXPECT_FALSE(io_of().isMember("submit_polling")) << "it was not tried";
}

TEST(TunedConfig, NamesABackendOnlyWhereTheCommandDid) {
  NvmeTuneArguments arguments;
  const TuneOutcome outcome = some_outcome();
  const Json::Value by_itself = test::parse_json(tuned_config(arguments, outcome));
  EXPECT_FALSE(by_itself["sluice"]["io"].isMember("backend"));
  EXPECT_EQ(by_itself["sluice"]["io"]["reads_per_write"].asUInt(), 3U);
  EXPECT_EQ(by_itself["aio"]["block_size"].asUInt(), 131072U);
  arguments.backend = nvme::BackendKind::threads;
  EXPECT_EQ(
      test::parse_json(tuned_config(arguments, outcome))["sluice"]["io"]["backend"].asString(),
      "threads");
}

}  // namespace
}  // namespace sluice::cli
