// Keys about several ranks: each has an effect, a line, or a reason.
#include <gmock/gmock.h>

#include "config_testing.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::config::test {
namespace {

using testing::HasSubstr;

enum class Verdict {
  effect,   // no line, and a field that the engine reads
  line,     // "mapped: KEY: ...": the engine does so whatever the value is
  refusal,  // over ranks only, with the reason
};

struct RankKey {
  const char* key;  // of zero_optimization, or with a dot in front of the top level
  const char* value;
  Verdict verdict;
  const char* words;
};

constexpr RankKey kRankKeys[] = {
    {".prescale_gradients", "true", Verdict::effect, ""},
    {".gradient_predivide_factor", "2.0", Verdict::effect, ""},
    {".gradient_allreduce_op", "\"sum\"", Verdict::effect, ""},
    {".communication_data_type", "\"fp32\"", Verdict::effect, ""},
    {".seq_parallel_communication_data_type", "\"bf16\"", Verdict::line, "which is not here"},
    {".data_parallel_size", "2", Verdict::line, "over all ranks of the run"},
    {"reduce_bucket_size", "1000", Verdict::line, "unit by unit"},
    {"allgather_bucket_size", "1000", Verdict::line, "unit by unit"},
    {"overlap_comm", "false", Verdict::line, "governed by sluice.overlap"},
    {"reduce_scatter", "false", Verdict::line, "twice the bytes"},
    {"contiguous_gradients", "false", Verdict::line, "one buffer"},
    {"round_robin_gradients", "true", Verdict::line, "unit by unit"},
    {"stage3_use_all_reduce_for_fetch_params", "true", Verdict::line, "twice the bytes"},
    {"stage3_allgather_sequential", "true", Verdict::line, "one after the other"},
    {"stage3_prefetch_bucket_size", "1000", Verdict::effect, ""},
    {"stage3_max_live_parameters", "1000", Verdict::effect, ""},
    {"stage3_max_reuse_distance", "1000", Verdict::effect, ""},
    {"stage3_param_persistence_threshold", "1000", Verdict::effect, ""},
    {"sub_group_size", "1000", Verdict::effect, ""},
    {"zero_hpz_partition_size", "2", Verdict::line, "divided over all ranks once"},
    {"zero_quantized_weights", "true", Verdict::refusal, "would train another model"},
    {"zero_quantized_nontrainable_weights", "true", Verdict::refusal, "would train another model"},
    {"zero_quantized_gradients", "true", Verdict::refusal, "communication_data_type"},
    {"zeropp_loco_param", "{\"err_beta\": 0.8}", Verdict::refusal, "communication_data_type"},
    {"mics_shard_size", "2", Verdict::line, "divided over all ranks"},
    {"mics_hierarchical_params_gather", "true", Verdict::line, "from all ranks at once"},
};

std::string path_of(const RankKey& of) {
  const std::string key(of.key);
  return key.starts_with(".") ? key.substr(1) : "zero_optimization." + key;
}

JsonText file_with(const RankKey& of) {
  return minimal()
      .set("zero_optimization.stage", "3")
      .set("zero_optimization.offload_param.device", "\"cpu\"")
      .set(path_of(of), of.value);
}

// minimal() is for one rank; two share its batch.
TrainConfig config_of(const JsonText& json, int ranks) {
  return parse_train_config(json.text(), "ds.json", {.world_size = ranks});
}

TEST(RankKeys, HaveAnEffectOrALineOrAReasonOnTwoRanks) {
  for (const RankKey& of : kRankKeys) {
    const std::string path = path_of(of);
    const std::string problems = shown(problems_of(file_with(of), 2));
    if (of.verdict == Verdict::refusal) {
      EXPECT_THAT(problems, HasSubstr(path + ": on 2 ranks ")) << path;
      EXPECT_THAT(problems, HasSubstr(of.words)) << path;
      EXPECT_EQ(shown(problems_of(file_with(of), 1)), "") << path;
      continue;
    }
    ASSERT_EQ(problems, "") << path;
    std::string lines;
    for (const std::string& note : config_of(file_with(of), 2).notes) lines += note + "\n";
    if (of.verdict == Verdict::line) {
      EXPECT_THAT(lines, HasSubstr("mapped: " + path + ": ")) << path;
      EXPECT_THAT(lines, HasSubstr(of.words)) << path;
    } else {
      EXPECT_THAT(lines, testing::Not(HasSubstr(path))) << path;
    }
  }
}

TEST(RankKeys, OfTheSumOverRanksHaveALineOnOneRank) {
  const TrainConfig config = parse(minimal()
                                       .set("gradient_allreduce_op", "\"Sum\"")
                                       .set("communication_data_type", "\"BF16\"")
                                       .set("gradient_predivide_factor", "2")
                                       .set("prescale_gradients", "true"));
  EXPECT_TRUE(config.zero.reduction.takes_sum);
  EXPECT_EQ(config.zero.reduction.wire_dtype, DType::bf16);
  for (const char* key : {"gradient_allreduce_op", "communication_data_type",
                          "gradient_predivide_factor", "prescale_gradients"})
    EXPECT_THAT(config.notes,
                testing::Contains("note: " + std::string(key) +
                                  ": an effect over ranks only, and this run has one"));
}

// DeepSpeed divides the ranks by it, so the batch of a step would be another one.
TEST(RankKeys, OfSequenceParallelismAreRefused) {
  for (const int ranks : {1, 2}) {
    EXPECT_EQ(shown(problems_of(minimal().set("sequence_parallel_size", "1"), ranks)), "");
    EXPECT_THAT(shown(problems_of(minimal().set("sequence_parallel_size", "2"), ranks)),
                HasSubstr("sequence_parallel_size: not supported yet; only 1 is accepted, found 2 "
                          "(number); without it every rank has whole sequences"));
  }
}

TEST(RankKeys, OfGatheredUnitsNeedWeightsOutsideOfTheDevice) {
  const JsonText json = minimal()
                            .set("zero_optimization.stage", "3")
                            .set("zero_optimization.stage3_max_reuse_distance", "1000");
  const auto has_line = testing::Contains(
      HasSubstr("stage3_max_reuse_distance: an effect only on units whose weights leave"));
  EXPECT_THAT(config_of(json, 2).notes, has_line);
  EXPECT_THAT(config_of(json, 1).notes, testing::Not(has_line));
}

TEST(RankKeys, NameEveryKeyOfTheTableThatSpeaksOfRanks) {
  for (const KeyInfo& info : key_table()) {
    if (info.note.find("on one rank it changes nothing") == std::string_view::npos) continue;
    const bool known =
        std::ranges::any_of(kRankKeys, [&](const RankKey& of) { return path_of(of) == info.path; });
    EXPECT_TRUE(known) << info.path;
  }
}

TEST(Reduction, DividesOnceInAll) {
  const auto of = [](const char* key, const char* value) {
    return config_of(minimal().set(key, value), 2).zero.reduction;
  };
  const ReductionConfig plain = config_of(minimal(), 2).zero.reduction;
  EXPECT_EQ(plain.divisor_before_sum(4), 1);
  EXPECT_EQ(plain.divisor_of_sum(4), 4);
  const ReductionConfig before = of("prescale_gradients", "true");
  EXPECT_EQ(before.divisor_before_sum(4), 4);
  EXPECT_EQ(before.divisor_of_sum(4), 1);
  const ReductionConfig both = of("gradient_predivide_factor", "2");
  EXPECT_EQ(both.divisor_before_sum(4), 2);
  EXPECT_EQ(both.divisor_of_sum(4), 2);
  for (const ReductionConfig& mean : {plain, before, both}) {
    EXPECT_EQ(mean.divisor(4), 4);
    EXPECT_EQ(mean.divisor_before_sum(1) * mean.divisor_of_sum(1), 1) << "one rank sums nothing";
  }
}

TEST(Reduction, OfASumIsUndivided) {
  const JsonText json = minimal()
                            .set("gradient_allreduce_op", "\"SUM\"")
                            .set("prescale_gradients", "true")
                            .set("gradient_predivide_factor", "2");
  const TrainConfig config = config_of(json, 2);
  EXPECT_EQ(config.zero.reduction.divisor_before_sum(2), 1);
  EXPECT_EQ(config.zero.reduction.divisor_of_sum(2), 1);
  EXPECT_EQ(config.zero.reduction.divisor(2), 1);
  for (const char* key : {"prescale_gradients", "gradient_predivide_factor"})
    EXPECT_THAT(config.notes, testing::Contains(HasSubstr("note: " + std::string(key) +
                                                          ": no effect with "
                                                          "gradient_allreduce_op \"sum\"")));
}

TEST(CommsLogger, TakesDeepSpeedsNamesOfOperations) {
  const TrainConfig config = config_of(
      minimal()
          .set("comms_logger.enabled", "true")
          .set("comms_logger.prof_all", "false")
          .set("comms_logger.prof_ops", R"(["all_gather_into_tensor", "recv", "mine", 7])"),
      2);
  EXPECT_THAT(config.monitors.comms_logger.prof_ops, testing::ElementsAre("all_gather", "receive"));
  EXPECT_THAT(config.notes, testing::Contains(HasSubstr("comms_logger.prof_ops: \"mine\"")));
  EXPECT_THAT(config.notes, testing::Contains(HasSubstr("7 (number) names no operation")));
}

}  // namespace
}  // namespace sluice::config::test
