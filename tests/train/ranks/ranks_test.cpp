// `sluice train` over processes of mpirun: stages, tiers and overlap have one result, and N ranks
// that of one: losses, norms and exported weights. SLUICE_RANKS_GRID=1 runs every combination, 960
// runs; SLUICE_RANKS_GRID=2/6 the second of six parts of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>

#include "ranks_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 4;

// Loss and gradient norm of every step, the last evaluation, and a digest of the exported weights.
std::vector<std::string> course(const RanksRun& run, RanksCase of, const std::string& name) {
  of.exported = true;
  const ProgramResult result = run.train(of, name, kSteps);
  EXPECT_EQ(result.exit_code, 0) << of.name() << "\n" << result.out << result.err;
  std::vector<std::string> all = run.values(name, "loss");
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kSteps)) << of.name();
  for (const char* key : {"grad_norm", "eval_loss"}) {
    for (const std::string& value : run.values(name, key)) all.push_back(value);
  }
  all.push_back(std::to_string(std::hash<std::string>()(run.weights(of, name))));
  return all;
}

std::vector<RanksCase> combinations(int ranks) {
  std::vector<RanksCase> all;
  for (const int stage : {0, 1, 2, 3}) {
    for (const char* offload : {"none", "cpu", "nvme"}) {
      if (stage == 0 && std::string(offload) != "none") continue;  // refused, as in DeepSpeed
      for (const bool overlap : {true, false})
        all.push_back({.ranks = ranks, .stage = stage, .offload = offload, .overlap = overlap});
    }
  }
  return all;
}

// A few that have every stage, tier and kind of overlap.
std::vector<RanksCase> few_combinations() {
  return {{.stage = 3, .offload = "none"},
          {.stage = 0, .offload = "none"},
          {.stage = 1, .offload = "cpu", .overlap = false},
          {.stage = 2, .offload = "nvme"},
          {.stage = 3, .offload = "cpu"},
          {.stage = 3, .offload = "nvme", .overlap = false}};
}

void expect_one_course(std::vector<RanksCase> cases, const RanksCase& with) {
  const RanksRun run;
  std::vector<std::string> first;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    RanksCase& of = cases[i];
    of.accumulation = with.accumulation;
    of.clipping = with.clipping;
    of.bf16 = with.bf16;
    of.tied = with.tied;
    const std::vector<std::string> here = course(run, of, "run" + std::to_string(i));
    if (i == 0) first = here;
    EXPECT_EQ(here, first) << of.name();
  }
}

TEST(TrainRanks, StagesTiersAndOverlapHaveOneResult) {
  expect_one_course(few_combinations(), {.accumulation = 2, .clipping = 0.5, .tied = true});
}

TEST(TrainRanks, UpdatesThatBeginDuringBackwardHaveOneResultToo) {
  expect_one_course({{.stage = 1, .offload = "none"}, {.stage = 3, .offload = "nvme"}},
                    {.accumulation = 1, .clipping = 0});
}

// How the cases of one group are trained. Their results are equal.
std::vector<RanksCase> groups() {
  std::vector<RanksCase> all;
  for (const int ranks : {1, 2, 4}) {
    for (const int accumulation : {1, 4}) {
      for (const double clipping : {0.0, 0.5}) {
        for (const bool tied : {true, false}) {
          for (const bool bf16 : {true, false}) {
            all.push_back({.ranks = ranks,
                           .accumulation = accumulation,
                           .clipping = clipping,
                           .bf16 = bf16,
                           .tied = tied});
          }
        }
      }
    }
  }
  return all;
}

TEST(TrainRanks, EveryCombinationHasOneResult) {
  const char* const asked = std::getenv("SLUICE_RANKS_GRID");
  if (asked == nullptr) GTEST_SKIP() << "SLUICE_RANKS_GRID=1 runs every combination";
  std::size_t part = 1;
  std::size_t parts = 1;
  ASSERT_GE(std::sscanf(asked, "%zu/%zu", &part, &parts), 1);
  ASSERT_TRUE(part >= 1 && part <= parts) << "SLUICE_RANKS_GRID=" << asked;
  const std::vector<RanksCase> all = groups();
  std::size_t runs = 0;
  for (std::size_t i = part - 1; i < all.size(); i += parts) {
    const std::vector<RanksCase> cases = combinations(all[i].ranks);
    expect_one_course(cases, all[i]);
    runs += cases.size();
    std::cout << runs << " runs; the last: " << all[i].name() << std::endl;
  }
}

// In fp32, with one micro-batch each: the sums over ranks are those over one rank's micro-batches.
// The norm is a sum of doubles in another order, so its last digits may differ.
TEST(TrainRanks, SeveralRanksHaveTheBitsOfOne) {
  const RanksRun run;
  for (const int ranks : {2, 4}) {
    for (const double clipping : {0.0, 0.5}) {
      const std::string name = std::to_string(ranks) + "-" + std::to_string(clipping);
      const RanksCase alone{.ranks = 1, .accumulation = ranks, .clipping = clipping, .bf16 = false};
      const RanksCase together{.ranks = ranks, .clipping = clipping, .bf16 = false};
      EXPECT_EQ(course(run, together, "together" + name).back(),
                course(run, alone, "alone" + name).back())
          << "exported weights: " << together.name();
      for (const char* key : {"loss", "eval_loss"})
        EXPECT_EQ(run.values("together" + name, key), run.values("alone" + name, key))
            << key << ": " << together.name();
      const std::vector<std::string> norms = run.values("together" + name, "grad_norm");
      const std::vector<std::string> of_one = run.values("alone" + name, "grad_norm");
      ASSERT_EQ(norms.size(), of_one.size());
      for (std::size_t i = 0; i < norms.size(); ++i)
        EXPECT_NEAR(std::stod(norms[i]) / std::stod(of_one[i]), 1, 1e-13);
    }
  }
}

TEST(TrainRanks, TheReportHasTheNumbersOfEveryRank) {
  const RanksRun run;
  const RanksCase of{.stage = 1, .offload = "cpu"};
  const ProgramResult result = run.train(of, "run", kSteps);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value ranks = run.report("run")["ranks"];
  EXPECT_EQ(ranks["count"].asInt(), 2);
  const Json::Value& numbers = ranks["numbers"];
  for (const char* name :
       {"busy_seconds.network", "busy_seconds.update", "stall_seconds.network"}) {
    ASSERT_EQ(numbers[name]["by_rank"].size(), 2U) << name;
    EXPECT_LE(numbers[name]["least"].asDouble(), numbers[name]["most"].asDouble());
  }
  EXPECT_GT(numbers["busy_seconds.network"]["least"].asDouble(), 0);
  EXPECT_FALSE(run.values("run", "network").empty()) << "bytes and stalls of each step";
}

// Parameters with the alignment and padding of the units, in bytes of the type that computes. The
// padding is sent too.
TEST(TrainRanks, AStepSendsWhatItsStageSays) {
  const RanksRun run;
  for (const int stage : {1, 3}) {
    const std::string name = "stage" + std::to_string(stage);
    const RanksCase of{.stage = stage, .offload = "cpu"};
    ASSERT_EQ(run.train(of, name, kSteps).exit_code, 0);
    const Json::Value report = run.report(name);
    const Json::Value numbers = report["ranks"]["numbers"];
    // The states are 12 bytes an element with an fp32 master, 12 with a split one; a shard's
    // elements follow from them.
    const double elements = numbers["state_bytes"]["by_rank"][0].asDouble() / 12 * of.ranks;
    const double p = elements * 2;
    const double share = (of.ranks - 1.0) / of.ranks;
    const double sent = numbers["network_sent_bytes_per_step"]["by_rank"][0].asDouble();
    const double control = 4096;  // norms, losses, signals
    EXPECT_LE(sent, (stage == 3 ? 3 : 2) * p * share + control) << name;
    EXPECT_GE(sent, 2 * p * share) << name;
  }
}

// Bytes of the calls of an operation, in the report's table of comms_logger.
std::uint64_t bytes_of(const Json::Value& report, const std::string& operation) {
  std::uint64_t sum = 0;
  for (const Json::Value& each : report["calls"]) {
    if (each["operation"] == operation)
      sum += each["message_bytes"].asUInt64() * each["count"].asUInt64();
  }
  return sum;
}

constexpr const char* kLogged = R"("comms_logger": {"enabled": true}, )";

// In fp32 a division by two changes no bit, wherever it happens.
TEST(TrainRanks, GradientsAreDividedAndSentAsTheirKeysSay) {
  const RanksRun run;
  const auto with = [](const std::string& keys) {
    return RanksCase{.stage = 1, .bf16 = false, .tied = true, .keys = kLogged + keys};
  };
  const std::vector<std::string> plain = course(run, with(""), "plain");
  for (const char* key : {R"("prescale_gradients": true, )", R"("gradient_predivide_factor": 2, )"})
    EXPECT_EQ(course(run, with(key), std::string("divided") + key[1]), plain) << key;
  course(run, with(R"("gradient_allreduce_op": "sum", )"), "sum");
  const double mean_norm = std::stod(run.values("plain", "grad_norm").front());
  EXPECT_NEAR(std::stod(run.values("sum", "grad_norm").front()), 2 * mean_norm, 1e-6 * mean_norm);

  const std::vector<std::string> narrow =
      course(run, with(R"("communication_data_type": "bf16", )"), "narrow");
  EXPECT_NE(narrow, plain);
  EXPECT_EQ(narrow.front(), plain.front()) << "the loss before the first update";
  EXPECT_EQ(2 * bytes_of(run.report("narrow"), "reduce_scatter"),
            bytes_of(run.report("plain"), "reduce_scatter"));
  EXPECT_EQ(bytes_of(run.report("narrow"), "all_gather"),
            bytes_of(run.report("plain"), "all_gather"));
}

TEST(TrainRanks, TheCallsAreATableWithCommsLogger) {
  const RanksRun run;
  const RanksCase of{
      .stage = 3,
      .keys =
          R"("comms_logger": {"enabled": true, "debug": true, "verbose": true, "prof_all": false,
                                  "prof_ops": ["all_gather_into_tensor"]}, )"};
  const ProgramResult result = run.train(of, "run", kSteps);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("busbw_avg (Gbps)"));
  EXPECT_THAT(result.out + result.err,
              testing::HasSubstr("comm op: all_gather of the weights of unit h.1 | time (ms): "));
  const Json::Value calls = run.report("run")["calls"];
  ASSERT_GE(calls.size(), 4U) << "embedding, two blocks and the head";
  for (const Json::Value& each : calls) {
    EXPECT_EQ(each["operation"], "all_gather");
    EXPECT_THAT(each["of"].asString(), testing::HasSubstr("unit "));
    EXPECT_GE(each["count"].asInt(), kSteps);
    EXPECT_LE(each["average_seconds"]["least"].asDouble(),
              each["average_seconds"]["most"].asDouble());
    // Two ranks: half of the message passes the link.
    EXPECT_NEAR(each["bus_gbps"].asDouble(), each["algorithm_gbps"].asDouble() / 2, 1e-9);
  }
}

}  // namespace
}  // namespace sluice::test
