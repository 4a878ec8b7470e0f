// What `sluice nvme tune` says of what it has measured, without measuring.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <json/json.h>

#include <sstream>

#include "json_text.hpp"
#include "nvme_tune.hpp"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two blocks and three depths, of which one setting was not measured.
TuneOutcome some_outcome() {
  TuneOutcome outcome;
  for (const std::uint32_t block : {65536U, 131072U}) {
    for (const unsigned depth : {1U, 2U, 4U}) {
      const double rate = 1e9 * depth * (block / 65536.0) * 4;
      const bool measured = block != 131072U || depth != 4;
      outcome.surface.push_back({{block, depth},
                                 measured ? nvme::TuneRates{rate, rate, rate} : nvme::TuneRates{},
                                 measured ? 1 : 0});
    }
  }
  outcome.chosen = outcome.surface[4];  // 128 KiB x 2
  outcome.swap = {{1, 1e9}, {3, 2e9}};
  outcome.reads_per_write = 3;
  outcome.backend = "threads";
  return outcome;
}

TEST(TuneText, LinesUpTheColumnWithTheMark) {
  const std::string text = tune_text(some_outcome());
  EXPECT_EQ(text.substr(0, text.find("write GB/s")),
            "read GB/s  depth 1  depth 2   depth 4\n"
            " 64.0 KiB     4.00     8.00     16.00\n"
            "  128 KiB     8.00    16.00*        -\n\n")
      << text;
}

TEST(TuneText, SaysHowMuchTimeThereWasFor) {
  TuneOutcome outcome = some_outcome();
  EXPECT_THAT(tune_text(outcome),
              HasSubstr("\nmeasured 5 of 6 settings, the best ones once; more seconds measure more "
                        "(*: chosen, -: not measured)\n"));
  outcome.finished = true;
  outcome.chosen.rounds = 9;
  EXPECT_THAT(tune_text(outcome),
              HasSubstr("\nmeasured 5 of 6 settings, the best ones 9 times (*"));
}

TEST(TuneText, ShowsTheDefaultBesideTheChoiceWhereItWasMeasured) {
  TuneOutcome outcome = some_outcome();
  EXPECT_THAT(tune_text(outcome), Not(HasSubstr("default:")));
  const nvme::TuneSetting usual{256U << 10U, 32};
  outcome.surface.push_back({usual, {5e9, 6e9, 7e9}, 0});
  EXPECT_THAT(tune_text(outcome), Not(HasSubstr("default:"))) << "no time for it";
  outcome.surface.back().rounds = 1;
  EXPECT_THAT(tune_text(outcome), HasSubstr("\ndefault: blocks of 256 KiB, depth 32: read 5.00, "
                                            "write 6.00, mixed 7.00 GB/s\nbest: blocks of "
                                            "128 KiB, depth 2, 3 reads in a row, threads: "));
}

TEST(TuneText, SaysWhatPollingGains) {
  TuneOutcome outcome = some_outcome();
  EXPECT_THAT(tune_text(outcome), HasSubstr("only io_uring has it"));
  outcome.unpolled_rate = 2e9;
  outcome.polled_rate = 3e9;
  outcome.submit_polling = true;
  EXPECT_THAT(tune_text(outcome), HasSubstr("3.00, without: 2.00 GB/s: on"));
  const NvmeTuneArguments arguments;
  EXPECT_TRUE(test::parse_json(tuned_config(arguments, outcome))["sluice"]["io"]["submit_polling"]
                  .asBool());
  outcome.submit_polling = false;
  const auto io_of = [&] {
    return test::parse_json(tuned_config(arguments, outcome))["sluice"]["io"];
  };
  ASSERT_TRUE(io_of().isMember("submit_polling")) << "an earlier configuration may have it";
  EXPECT_FALSE(io_of()["submit_polling"].asBool());
  outcome.polled_rate = 0;
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
