// `sluice plan --ranks`: plans for ranks that are not there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RanksPlan, PrintsBytesSecondsAndEveryAssumption) {
  for (const char* size : {"7B", "70b", "1T"}) {
    const ProgramResult result =
        run_sluice({"plan", "--ranks", "8,64,512", "--network", "50GB/s", "--drives", "4",
                    "--parameters", size, "--gpu-memory", "80GB", "--memory", "1TB"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("(derived: a GPT of about "), HasSubstr("no --config, assumed"),
                      HasSubstr("states on nvme (12 bytes a parameter)"),
                      HasSubstr("400 teraflop/s (assumed)"), HasSubstr("4 (given), each: 6 GB/s"),
                      HasSubstr("50 GB/s (given)"), HasSubstr("billion parameters/s (assumed)"),
                      HasSubstr("a host has up to 8 ranks"), HasSubstr("all-gather"),
                      HasSubstr("\n    8 "), HasSubstr("\n  512 ")));
  }
}

TEST(RanksPlan, FollowsItsFormulas) {
  const ProgramResult result =
      run_sluice({"plan", "--ranks", "1,4", "--parameters", "7B", "--network", "400Gbit/s",
                  "--ranks-per-host", "2", "--json"});
  const Json::Value plan = parse_json(last_line(result.out));
  const double parameters = plan["parameters"].asDouble();
  const Json::Value& one = plan["plans"][0];
  const Json::Value& four = plan["plans"][1];
  EXPECT_EQ(one["seconds"]["all_gather"].asDouble(), 0);
  // 2 * 2 bytes * P * 3/4 over 50 GB/s.
  EXPECT_NEAR(four["seconds"]["all_gather"].asDouble(), 3 * parameters / 50e9, 1e-6);
  EXPECT_NEAR(four["seconds"]["reduce_scatter"].asDouble(), 1.5 * parameters / 50e9, 1e-6);
  EXPECT_EQ(four["seconds"]["compute"], one["seconds"]["compute"]);
  EXPECT_NEAR(four["seconds"]["update"].asDouble(), one["seconds"]["update"].asDouble() / 2, 1e-9);
  EXPECT_NEAR(four["rank_bytes"]["states"].asDouble(), 10 * parameters / 4, 64);
  EXPECT_TRUE(four["fits"].isNull());
}

TEST(RanksPlan, TakesTiersAndBatchFromAConfiguration) {
  const TempDir directory;
  write_file(directory.file("model.json"), kModelJson);
  write_file(directory.file("ds.json"), kConfigJson);
  const ProgramResult result =
      run_sluice({"plan", "--ranks", "2", "--config", directory.file("ds.json"), "--model",
                  directory.file("model.json"), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json::Value plan = parse_json(last_line(result.out));
  EXPECT_EQ(plan["stage"], 3);
  EXPECT_EQ(plan["plans"][0]["rank_bytes"]["host"], 0);  // everything is on the device
  EXPECT_THAT(result.err, HasSubstr("configuration: stage 3, weights on device"));
}

// A batch is that of all ranks.
TEST(RanksPlan, DividesTheBatchByTheRanks) {
  const TempDir directory;
  write_file(directory.file("ds.json"),
             R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                 "optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}})");
  const auto plan = [&](const char* ranks) {
    return run_sluice({"plan", "--ranks", ranks, "--config", directory.file("ds.json"),
                       "--parameters", "10M", "--json"});
  };
  const ProgramResult result = plan("1,4");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("micro-batch 2 x 4 (1 rank), 2 x 1 (4 ranks)"));
  const Json::Value plans = parse_json(last_line(result.out))["plans"];
  EXPECT_EQ(plans[0]["rank_bytes"]["inputs"].asUInt64(),
            4 * plans[1]["rank_bytes"]["inputs"].asUInt64());
  EXPECT_NEAR(plans[0]["seconds"]["compute"].asDouble(),
              4 * plans[1]["seconds"]["compute"].asDouble(), 1e-9);
  const ProgramResult refused = plan("1,3");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("8 is not 2 x 1 x 3"));
}

TEST(RanksPlan, CountsTheUpperHalfOfASplitMasterInMemoryAsTheWeight) {
  const ProgramResult result = run_sluice({"plan", "--ranks", "1", "--parameters", "7B"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("states on host (10 bytes a parameter)"));
}

TEST(RanksPlan, SaysWhatItLeavesOut) {
  const TempDir directory;
  write_file(directory.file("model.json"), kModelJson);
  write_file(directory.file("ds.json"),
             R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"},
                 "zero_optimization": {"stage": 3,
                   "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
                 "sluice": {"speculative_bytes": "1GiB"}})");
  write_file(directory.file("none.json"), "");
  const ProgramResult result =
      run_sluice({"plan", "--ranks", "2", "--config", directory.file("ds.json"), "--model",
                  directory.file("model.json"), "--rates", directory.file("none.json")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("not counted: zero_optimization.offload_optimizer.ratio"),
                    HasSubstr("not counted: sluice.speculative_bytes"),
                    HasSubstr("no rates of this machine are stored for 2 ranks on a host")));
}

TEST(RanksPlan, SaysWhatIsShort) {
  const ProgramResult result = run_sluice(
      {"plan", "--ranks", "8", "--parameters", "70B", "--gpu-memory", "1GB", "--memory", "10GB"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("device short by "), HasSubstr("host short by ")));
}

TEST(RanksPlan, RefusesWhatHasNoMeaning) {
  const auto error = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "plan");
    const ProgramResult result = run_sluice(flags);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({}), HasSubstr("plan: missing --config FILE, --model FILE"));
  EXPECT_THAT(error({"--network", "1GB/s", "--config", "c", "--model", "m"}),
              HasSubstr("--network needs --ranks"));
  EXPECT_THAT(error({"--ranks", "8"}), HasSubstr("--ranks needs a model"));
  EXPECT_THAT(error({"--ranks", "8,x", "--parameters", "7B"}), HasSubstr("--ranks: expected"));
  EXPECT_THAT(error({"--ranks", "8,", "--parameters", "7B"}), HasSubstr("--ranks: expected"));
  EXPECT_THAT(error({"--ranks", "8", "--parameters", "7X"}), HasSubstr("as in 350M, 70B"));
  EXPECT_THAT(error({"--ranks", "8", "--parameters", "7B", "--model", "m"}),
              HasSubstr("exclude each other"));
  EXPECT_THAT(error({"--ranks", "8", "--parameters", "7B", "--probe"}),
              HasSubstr("--probe measures with a plan: give --config FILE and --model FILE"));
  EXPECT_THAT(error({"--ranks", "8", "--config", "c", "--model", "m", "--probe", "--drives", "2"}),
              HasSubstr("--drives gives what --probe measures"));
  for (const char* flag : {"--data", "--eval-data", "--steps"})
    EXPECT_THAT(error({"--ranks", "8", "--parameters", "7B", flag, "1"}),
                HasSubstr(std::string(flag) + " is for the plan of one run"));
  EXPECT_THAT(error({"--ranks", "8", "--parameters", "7B", "--rates", "r.json"}),
              HasSubstr("--rates has rates of a model's plan"));
  EXPECT_THAT(error({"--ranks", "8", "--config", "c", "--model", "m", "--rates", "r.json",
                     "--flops", "1T"}),
              HasSubstr("--flops gives what --rates has"));
  for (const char* rate : {"50", "50GB", "400Gb/s", "fast/s", "0GB/s"}) {
    EXPECT_THAT(error({"--ranks", "8", "--parameters", "7B", "--network", rate}),
                HasSubstr("--network: expected a rate as in 50GB/s or 400Gbit/s"));
  }
}

}  // namespace
}  // namespace sluice::test
