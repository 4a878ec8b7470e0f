// Formulas for many ranks, against numbers computed by hand and against the plan of one rank.

#include "sluice/plan/rank_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plans.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/prediction.hpp"

namespace sluice::plan {
namespace {

// 1000 parameters, the largest unit 100; 3 blocks of width 4, sequences of 8 tokens. bf16 with a
// split master: 12 bytes of states a parameter (weight 2, low half 2, two moments of 4).
RankShape small_shape(int stage, Tier weights, Tier states) {
  RankShape shape;
  shape.parameters = 1000;
  shape.largest_unit = 100;
  shape.layers = 3;
  shape.width = 4;
  shape.sequence = 8;
  shape.stage = stage;
  shape.weights = weights;
  shape.states = states;
  shape.format.master = config::MasterFormat::split;
  return shape;
}

// Weights, gradients on device and host, states, of one of 4 ranks.
std::string held(const RankShape& shape) {
  const RankBytes bytes = rank_bytes(shape, 4);
  return std::to_string(bytes.weights) + " " + std::to_string(bytes.device_gradients) + " " +
         std::to_string(bytes.host_gradients) + " " + std::to_string(bytes.states);
}

TEST(RankBytes, FollowTheStage) {
  // A shard is 1000 / 4 = 250 parameters. In memory the weight is the master's upper half: 10
  // bytes.
  for (const int stage : {0, 1, 2})
    EXPECT_EQ(held(small_shape(stage, Tier::device, Tier::device)), "2000 500 0 2500") << stage;
  EXPECT_EQ(held(small_shape(3, Tier::device, Tier::device)), "500 500 0 2500");
  EXPECT_EQ(held(small_shape(2, Tier::device, Tier::host)), "2000 0 500 2500");
  EXPECT_EQ(held(small_shape(3, Tier::host, Tier::nvme)), "500 0 500 3000");  // 12 bytes in files
}

TEST(RankBytes, FollowTheFormatOfTheStates) {
  RankShape shape = small_shape(3, Tier::host, Tier::host);
  shape.format.master = config::MasterFormat::fp32;
  EXPECT_EQ(rank_bytes(shape, 4).states, 250U * 12);  // master and two moments
  shape.format.moments = config::MomentFormat::bf16;
  EXPECT_EQ(rank_bytes(shape, 4).states, 250U * 8);
  shape.format.rule = cpu_adam::Rule::sgd;
  EXPECT_EQ(rank_bytes(shape, 4).states, 250U * 4);
}

TEST(RankBytes, OfGradientsThatDoNotWaitAreThoseOfTwoUnits) {
  RankShape shape = small_shape(3, Tier::host, Tier::host);
  shape.waits_for_norm = false;
  const RankBytes bytes = rank_bytes(shape, 4);
  EXPECT_EQ(bytes.host_gradients, 0U);
  EXPECT_EQ(bytes.gathered, 800U);  // (2 gathered + 2 gradients) * 100 * 2 bytes
}

TEST(RankBytes, AddUpOnTheirTiers) {
  const RankBytes bytes = rank_bytes(small_shape(3, Tier::host, Tier::nvme), 4);
  // Inputs of 3 blocks and the head: 4 * 8 tokens * width 4 * 2 bytes.
  EXPECT_EQ(bytes.inputs, 256U);
  EXPECT_EQ(bytes.device_bytes, 800U + 256U);
  EXPECT_EQ(bytes.host_bytes, 500U + 500U);
  EXPECT_EQ(bytes.nvme_bytes, 2U * 3000U);  // two slots
}

TEST(RankBytes, OfAShardAreRoundedUp) {
  EXPECT_EQ(rank_bytes(small_shape(3, Tier::host, Tier::host), 3).weights, 2U * 334U);
}

TEST(RankShape, FollowsTheConfiguration) {
  auto config = train_config(Device::nvme, Device::cpu, 64, 96);
  const config::ModelConfig model = model_config(8, 256);
  const RankShape usual = rank_shape(config, model);
  EXPECT_EQ(usual.gradient_bytes, 2U);
  EXPECT_EQ(usual.wire_bytes, 2U);
  EXPECT_EQ(usual.slots, 2U);
  EXPECT_EQ(usual.inputs, Tier::device);
  config.fp32_gradient_sums = true;
  EXPECT_EQ(rank_shape(config, model).gradient_bytes, 4U);
  EXPECT_EQ(rank_shape(config, model).wire_bytes, 4U);
  config.zero.reduction.wire_dtype = DType::bf16;
  config.sluice.durability = Durability::none;
  config.sluice.activations = config::Activations::offload;
  EXPECT_EQ(rank_shape(config, model).wire_bytes, 2U);
  EXPECT_EQ(rank_shape(config, model).slots, 1U);
  EXPECT_EQ(rank_shape(config, model).inputs, Tier::host);
}

TEST(RankBytes, FollowTheTypesOfGradientsAndTheSlots) {
  RankShape shape = small_shape(3, Tier::host, Tier::nvme);
  shape.gradient_bytes = 4;
  shape.slots = 1;
  shape.inputs = Tier::host;
  const RankBytes bytes = rank_bytes(shape, 4);
  EXPECT_EQ(bytes.host_gradients, 1000U);
  EXPECT_EQ(bytes.gathered, 2U * (2 + 4) * 100);
  EXPECT_EQ(bytes.device_bytes, bytes.gathered);
  EXPECT_EQ(bytes.host_bytes, 500U + 1000 + 256);  // weights, gradients, inputs
  EXPECT_EQ(bytes.nvme_bytes, 3000U);
}

TEST(RankTraffic, FollowsTheTypesOfGradientsAndTheInputs) {
  RankShape shape = small_shape(3, Tier::host, Tier::host);
  shape.gradient_bytes = 4;
  shape.wire_bytes = 2;
  shape.inputs = Tier::host;
  const RankTraffic traffic = rank_traffic(shape);
  EXPECT_EQ(traffic.reduced_bytes, 2000);
  EXPECT_EQ(traffic.copy_bytes, 1000 * (2 + 2 + 4));
  EXPECT_EQ(traffic.input_bytes, 2 * 256);  // not divided: home in forward, back in backward
}

TEST(RankTraffic, OnTheNetworkIsTwoOrThreeTimesTheParameters) {
  // 2 P (N-1)/N elements of 2 bytes in stages 0 to 2, 3 P (N-1)/N in stage 3.
  for (const int stage : {0, 1, 2, 3}) {
    const StepWork work = step_work(small_shape(stage, Tier::device, Tier::device), {});
    const RankPrediction four = predict_ranks(work, {4, 1, 1});  // a byte in a second
    EXPECT_EQ(four.reduce_seconds, 1500) << stage;
    EXPECT_EQ(four.gather_seconds, stage == 3 ? 3000 : 1500) << stage;
    const RankPrediction alone = predict_ranks(work, {1, 1, 1});
    EXPECT_EQ(alone.gather_seconds + alone.reduce_seconds, 0) << stage;
  }
}

TEST(RankTraffic, OnLocalLinksFollowsTheTiers) {
  // Weights twice to the device and gradients once home: (2 + 1) * 1000 * 2 bytes. States: 10 bytes
  // are read, since the update finds the weight at its home, and 12 are written.
  const RankTraffic traffic = rank_traffic(small_shape(3, Tier::host, Tier::nvme));
  EXPECT_EQ(traffic.copy_bytes, 6000);
  EXPECT_EQ(traffic.read_bytes, 10000);
  EXPECT_EQ(traffic.written_bytes, 12000);
  // Weights in files: 12 bytes read, weights twice (4000), and 2000 more written.
  const RankTraffic away = rank_traffic(small_shape(3, Tier::nvme, Tier::nvme));
  EXPECT_EQ(away.read_bytes, 12000 + 4000);
  EXPECT_EQ(away.written_bytes, 12000 + 2000);
  // Whole weights on the device: gradients go home, updated weights come back.
  EXPECT_EQ(rank_traffic(small_shape(2, Tier::device, Tier::host)).copy_bytes, 2 * 2000);
}

TEST(StepWork, UpdatesHalfOfQwen2InEachOfTwoRanks) {
  RankShape shape = small_shape(1, Tier::device, Tier::device);
  shape.parameters = 1'543'714'304;  // Qwen2-1.5B
  EXPECT_EQ(rank_traffic(shape).updated, 1'543'714'304);
  RankRates rates;
  rates.update_elements_per_second = 1;
  EXPECT_EQ(predict_ranks(step_work(shape, rates), {2, 1, 1}).update_seconds, 771'857'152);
}

TEST(RankFlops, CountParametersAndAttention) {
  // 8 tokens, 1000 parameters, attention 2 * 3 blocks * 8 tokens * width 4 = 192.
  RankShape shape = small_shape(3, Tier::host, Tier::host);
  EXPECT_EQ(rank_flops(shape), 8.0 * 8 * 1192);
  shape.recompute = false;
  EXPECT_EQ(rank_flops(shape), 6.0 * 8 * 1192);
}

StepWork hand_work() {
  StepWork work;
  work.compute_seconds = 1;
  work.update_seconds = 8;
  work.sharded_copy_seconds = 4;
  work.own_copy_seconds = 0.5;
  work.sharded_drive_seconds = 16;
  work.own_drive_seconds = 1;
  work.gathered_bytes = 4e9;
  work.reduced_bytes = 2e9;
  work.tokens = 100;
  return work;
}

TEST(PredictRanks, DividesShardsAndSharesHosts) {
  // 4 ranks, 2 on a host, 1 GB/s.
  const RankPrediction p = predict_ranks(hand_work(), {4, 2, 1e9});
  EXPECT_DOUBLE_EQ(p.compute_seconds, 1);
  EXPECT_DOUBLE_EQ(p.update_seconds, 8.0 / 4 * 2);
  EXPECT_DOUBLE_EQ(p.copy_seconds, 4.0 / 4 + 0.5);
  EXPECT_DOUBLE_EQ(p.drive_seconds, (16.0 / 4 + 1) * 2);
  EXPECT_DOUBLE_EQ(p.gather_seconds, 4 * 0.75);
  EXPECT_DOUBLE_EQ(p.reduce_seconds, 2 * 0.75);
  EXPECT_DOUBLE_EQ(p.step_seconds, 10);  // the drive, the longest
  EXPECT_EQ(p.bound_by, "drive");
  EXPECT_DOUBLE_EQ(p.tokens_per_second, 4 * 100 / 10.0);
}

TEST(PredictRanks, AddsLinksThatDoNotOverlap) {
  StepWork work = hand_work();
  work.overlap = false;
  EXPECT_DOUBLE_EQ(predict_ranks(work, {4, 2, 1e9}).step_seconds, 1 + 4 + 1.5 + 10 + 4.5);
}

TEST(PredictRanks, WithoutGpusTakesTurnsOnTheCores) {
  StepWork work = hand_work();
  work.shares_cores = true;
  work.sharded_drive_seconds = 0;
  const RankPrediction p = predict_ranks(work, {4, 2, 1e9});
  EXPECT_DOUBLE_EQ(p.compute_seconds, 2);  // two ranks on the cores that one had
  EXPECT_DOUBLE_EQ(p.copy_seconds, 3);
  EXPECT_DOUBLE_EQ(p.step_seconds, 2 + 3 + 4);
}

TEST(PredictRanks, TakesNoTurnsWhereEachRankHasCoresOfItsOwn) {
  StepWork work = hand_work();
  work.shares_cores = true;
  work.sharded_drive_seconds = 0;
  work.cores_share = work.update_cores_share = 0.25;  // the seconds are those of one core of four
  const RankPrediction four = predict_ranks(work, {4, 4, 1e9});
  EXPECT_DOUBLE_EQ(four.compute_seconds, 1);
  EXPECT_DOUBLE_EQ(four.copy_seconds, 4.0 / 4 + 0.5);
  EXPECT_DOUBLE_EQ(four.update_seconds, 8.0 / 4);
  const RankPrediction eight = predict_ranks(work, {8, 8, 1e9});
  EXPECT_DOUBLE_EQ(eight.compute_seconds, 2);
  EXPECT_DOUBLE_EQ(eight.update_seconds, 8.0 / 8 * 2);
}

TEST(PredictRanks, UpdatesWithTheThreadsThatUpdate) {
  StepWork work = hand_work();
  work.shares_cores = true;
  work.cores_share = 0.5;  // one thread of two cores computes, two update
  const RankPrediction two = predict_ranks(work, {2, 2, 1e9});
  EXPECT_DOUBLE_EQ(two.compute_seconds, 1);
  EXPECT_DOUBLE_EQ(two.update_seconds, 8.0 / 2 * 2);
}

TEST(PredictRanks, NeedsANetworkForSeveralRanks) {
  EXPECT_THROW(predict_ranks(hand_work(), {2, 1, 0}), InvalidArgument);
  EXPECT_NO_THROW(predict_ranks(hand_work(), {1, 1, 0}));
}

MachineRates some_rates() {
  MachineRates rates;
  rates.block.first =
      rates.block.next = {.forward = 0.02, .forward_saving = 0.02, .backward = 0.04};
  rates.update_elements_per_second = 5e7;
  rates.gradient_bytes_per_second = 1e9;
  rates.copy_bytes_per_second = 2e8;
  rates.checksum_bytes_per_second = 5e8;
  rates.read_bytes_per_second = 3e8;
  rates.write_bytes_per_second = 2e8;
  rates.swap_bytes_per_second = 2.5e8;
  return rates;
}

TEST(StepWork, KnowsItsShareOfTheCores) {
  auto config = train_config(Device::cpu, Device::cpu, 64, 96);
  config.sluice.threads.compute = 2;
  config.sluice.threads.optimizer = 4;
  const Plan plan = plan_of(config);
  EXPECT_EQ(step_work(plan, some_rates(), 8).cores_share, 0.25);
  EXPECT_EQ(step_work(plan, some_rates(), 8).update_cores_share, 0.5);
  EXPECT_EQ(step_work(plan, some_rates(), 1).cores_share, 1);
}

class OneRank : public ::testing::TestWithParam<std::pair<Device, Device>> {};

TEST_P(OneRank, IsPredictedAsItsPlanIs) {
  const auto [states, weights] = GetParam();
  for (const bool overlap : {true, false}) {
    auto config = train_config(states, weights, 64, 96);
    config.sluice.overlap = overlap;
    const Plan plan = plan_of(config);
    const Prediction one = predict(plan, some_rates());
    const RankPrediction ranks = predict_ranks(step_work(plan, some_rates(), 1), {});
    EXPECT_NEAR(ranks.step_seconds, one.step_seconds, 1e-9);
    EXPECT_NEAR(ranks.compute_seconds, one.compute_seconds, 1e-9);
    EXPECT_NEAR(ranks.update_seconds, one.update_seconds, 1e-9);
    EXPECT_NEAR(ranks.copy_seconds, one.copy_seconds, 1e-9);
    EXPECT_NEAR(ranks.drive_seconds, one.drive_seconds, 1e-9);
    EXPECT_NEAR(ranks.tokens_per_second, one.tokens_per_second, 1e-6);
    EXPECT_EQ(ranks.gather_seconds + ranks.reduce_seconds, 0);
    EXPECT_EQ(ranks.bound_by, one.bound_by);
  }
}
INSTANTIATE_TEST_SUITE_P(Tiers, OneRank,
                         ::testing::Values(std::pair(Device::cpu, Device::none),
                                           std::pair(Device::cpu, Device::cpu),
                                           std::pair(Device::nvme, Device::cpu)));

// The formulas count parameters, a plan padded units: some 0.1 % more here. A tied head would send
// its part of the embedding's gradient home by itself.
TEST(RankTraffic, OfOneRankIsThatOfItsPlan) {
  const auto config = train_config(Device::nvme, Device::none, 512, 96);
  config::ModelConfig model = model_config(8, 256);
  model.tie_word_embeddings = false;
  const Plan plan = make_plan(config, model, Placement::configured, roomy_machine());
  const RankTraffic one = rank_traffic(rank_shape(config, model));
  const auto near = [](double formula, std::uint64_t planned) {
    EXPECT_NEAR(formula / static_cast<double>(planned), 1, 0.01) << formula << ' ' << planned;
  };
  near(one.written_bytes, plan.traffic.nvme_written_bytes);
  near(one.copy_bytes, plan.traffic.h2d_bytes + plan.traffic.d2h_bytes);
}

std::uint64_t parameters_of(const config::ModelConfig& model) {
  std::uint64_t count = 0;
  for (const zero::UnitLayout& unit : models::gpt2_units(model, 1)) count += unit.param_count;
  return count;
}

TEST(RankShapes, AreThoseOfTheModel) {
  const config::ModelConfig model = model_config(8, 256);
  const RankShape shape = rank_shape(train_config(Device::nvme, Device::cpu, 64, 64), model);
  EXPECT_EQ(shape.parameters, parameters_of(model));
  EXPECT_EQ(shape.micro_batch * shape.micro_batches, 8U);
  EXPECT_EQ(shape.weights, Tier::host);
  EXPECT_EQ(shape.states, Tier::nvme);
}

TEST(ModelOfSize, HasAboutSoManyParameters) {
  for (const double size : {125e6, 7e9, 70e9, 175e9, 1e12}) {
    const config::ModelConfig model = model_of_size(static_cast<std::uint64_t>(size));
    EXPECT_NEAR(static_cast<double>(parameters_of(model)) / size, 1, 0.1) << size;
    EXPECT_EQ(model.n_embd, 128 * model.n_head);
  }
  EXPECT_THROW(model_of_size(1000), InvalidArgument);
}

}  // namespace
}  // namespace sluice::plan
