// Refusals: table and reasons agree, and the suggested changes fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "plans.hpp"
#include "sluice/plan/make_plan.hpp"

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

// The least possible budgets are sufficient, and the refusals of smaller budgets fall short by the
// difference.
TEST(Refusal, TheLeastPossibleIsEnoughAndNoLessIs) {
  std::mt19937 random(20261122);
  const auto one_of = [&](const std::vector<std::int64_t>& values) {
    return values[random() % values.size()];
  };
  const auto exactly = [](std::uint64_t bytes) {
    return ByteBudget{ByteBudget::Kind::bytes, bytes};
  };
  for (int round = 0; round < 200; ++round) {
    auto config = train_config(random() % 4 == 0 ? Device::cpu : Device::nvme,
                               random() % 2 == 0 ? Device::cpu : Device::nvme, 4096, 4096);
    config.gradient_clipping = random() % 2 == 0 ? 1.0 : 0.0;
    config.gradient_accumulation_steps = one_of({1, 2, 8});
    config.sluice.overlap = random() % 2 == 0;
    config.sluice.activations =
        random() % 4 == 0 ? config::Activations::keep : config::Activations::automatic;
    const auto model = model_config(one_of({1, 2, 7}), one_of({64, 256, 512}));
    const auto plan = make_plan(config, model, Placement::configured, roomy_machine());
    config.sluice.device_bytes = exactly(plan.least.device_bytes);
    config.sluice.host_bytes = exactly(plan.least.host_bytes);
    EXPECT_EQ(refusal(config, model, roomy_machine()), "") << "round " << round;
    config.sluice.host_bytes = exactly(plan.least.host_bytes - 1);
    const std::string short_by = refusal(config, model, roomy_machine());
    EXPECT_THAT(short_by, testing::HasSubstr("the host tier is short by 1 B")) << round;
    config.sluice.host_bytes = exactly(plan.least.host_bytes);
    config.sluice.device_bytes = exactly(plan.least.device_bytes - 1);
    EXPECT_NE(refusal(config, model, roomy_machine()), "") << "round " << round;
  }
}

// The numbers of a row of the table: device and host; "" for "-".
std::vector<std::string> cells(const std::string& text, const std::string& row) {
  const std::string cell = "(-|[0-9.]+ [KMG]?i?B)";
  std::smatch found;
  if (!std::regex_search(text, found, std::regex("\n" + row + " +" + cell + " +" + cell)))
    return {};
  return {found[1] == "-" ? "" : found[1].str(), found[2] == "-" ? "" : found[2].str()};
}
std::string said(const std::string& text, const std::string& tier) {
  std::smatch found;
  const std::regex sentence("the " + tier + " tier is short by ([0-9.]+ [KMG]?i?B) \\(");
  return std::regex_search(text, found, sentence) ? found[1].str() : "";
}

// Bytes that each tier is short by, when table and sentences agree.
std::vector<std::string> cells_of_one_story(const std::string& text) {
  std::vector<std::string> table = cells(text, "short by");
  table.resize(2);
  EXPECT_EQ(table[0], said(text, "device")) << text;
  EXPECT_EQ(table[1], said(text, "host")) << text;
  EXPECT_NE(table[0] + table[1], "") << text;
  return table;
}

TEST(Refusal, IsOneStoryWhateverIsShort) {
  std::mt19937 random(20261121);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    auto config = train_config(static_cast<Device>(pick(0, 2)), static_cast<Device>(pick(0, 2)),
                               static_cast<std::uint64_t>(pick(1, 30)),
                               static_cast<std::uint64_t>(pick(1, 30)));
    config.sluice.overlap = pick(0, 1) == 1;
    const std::string text =
        refusal(config, model_config(pick(1, 8), std::int64_t{64} * pick(1, 8)), roomy_machine());
    if (text.empty()) continue;
    ++refused;
    cells_of_one_story(text);
  }
  EXPECT_GT(refused, 50);
}

TEST(Refusal, NamesEveryTierThatIsShort) {
  const config::ModelConfig model = model_config(6, 896);
  config::ModelConfig small = model_config(4, 256);
  const struct {
    config::TrainConfig config;
    config::ModelConfig model;
    bool device, host;  // which tiers are short
  } cases[] = {{train_config(Device::nvme, Device::nvme, 40, 72), model, true, false},
               {train_config(Device::nvme, Device::nvme, 40, 12), model, true, true},
               {train_config(Device::nvme, Device::nvme, 24, 12), small, false, true},
               {train_config(Device::cpu, Device::cpu, 7, 12), small, true, true},
               {train_config(Device::none, Device::nvme, 20, 12), small, false, true}};
  for (const auto& one : cases) {
    const std::string text = refusal(one.config, one.model, roomy_machine());
    const std::vector<std::string> table = cells_of_one_story(text);
    EXPECT_EQ(!table[0].empty(), one.device) << text;
    EXPECT_EQ(!table[1].empty(), one.host) << text;
    EXPECT_NE(text.find("\n  1. "), std::string::npos) << text;
    EXPECT_NE(text.find("\n  2. "), std::string::npos) << text;
  }
}

// The suggestion equals the shortage, in whole MiB.
TEST(Refusal, SuggestsTheBudgetThatTheShortageMakes) {
  const auto config = train_config(Device::nvme, Device::nvme, 40, 72);
  const config::ModelConfig model = model_config(6, 896);
  const std::string text = refusal(config, model, roomy_machine());
  const std::uint64_t advice = (40 * kMiB + parse_bytes(said(text, "device")) + kMiB - 1) / kMiB;
  EXPECT_NE(text.find("\"device_bytes\": \"" + std::to_string(advice) + "MiB\""), std::string::npos)
      << text;
  EXPECT_NO_THROW(make_plan(train_config(Device::nvme, Device::nvme, advice, 72), model,
                            Placement::configured, roomy_machine()));
}

// Gradients of several passes wait on the device, which has room for them.
TEST(Refusal, SuggestsMorePassesWhereTheDeviceHasRoomForGradients) {
  auto config = train_config(Device::cpu, Device::cpu, 1024, 155);
  config.gradient_clipping = 1;
  config.sluice.activations = config::Activations::recompute;
  const std::string text = refusal(config, model_config(4, 512), roomy_machine());
  EXPECT_NE(text.find("set \"sluice\": {\"micro_batches_per_pass\": 2}\n"), std::string::npos)
      << text;
  config.sluice.passes.each = 2;
  EXPECT_EQ(refusal(config, model_config(4, 512), roomy_machine()), "");
}

TEST(Refusal, SuggestsToLeaveOutBuffersThatDoNotFit) {
  auto config = train_config(Device::nvme, Device::nvme, 512, 512);
  config.zero.offload_optimizer.buffer_count = 36000;
  const std::string one = refusal(config, model_config(4, 256), roomy_machine());
  EXPECT_NE(one.find("leave out \"buffer_count\" of \"offload_optimizer\"\n"), std::string::npos)
      << one;
  EXPECT_EQ(one.find("no single change"), std::string::npos) << one;
  config.zero.offload_param.buffer_count = 65536;
  const std::string both = refusal(config, model_config(4, 256), roomy_machine());
  EXPECT_NE(both.find("leave out \"buffer_count\" of \"offload_optimizer\" and leave out "
                      "\"buffer_count\" of \"offload_param\""),
            std::string::npos)
      << both;
}

TEST(Refusal, SuggestsWhatHelpsWhenTheDiskIsShort) {
  const auto config = train_config(Device::nvme, Device::nvme, 512, 512);
  const config::ModelConfig model = model_config(4, 256);
  const auto need =
      make_plan(config, model, Placement::configured, roomy_machine()).planned.tiers.nvme;
  const std::string elsewhere =
      "set \"nvme_path\" of \"offload_optimizer\" and \"nvme_path\" of \"offload_param\" to a "
      "directory with " +
      std::to_string((need + kMiB - 1) / kMiB) + " MiB free";
  const std::string one_slot = "\"durability\": \"none\"";
  MachineFacts machine = roomy_machine();
  machine.free_disk_bytes = {{"/drive", need - 1}};
  std::string text = refusal(config, model, machine);
  EXPECT_NE(text.find(elsewhere), std::string::npos) << text;
  EXPECT_NE(text.find(one_slot), std::string::npos) << text;
  // One slot is too large here too, so the refusal does not suggest it.
  machine.free_disk_bytes = {{"/drive", need / 4}};
  text = refusal(config, model, machine);
  EXPECT_NE(text.find(elsewhere), std::string::npos) << text;
  EXPECT_EQ(text.find(one_slot), std::string::npos) << text;
}

TEST(Refusal, NamesTheRankThatHasTheLeastWhereRanksPlanTogether) {
  auto config = train_config(Device::nvme, Device::nvme, 512, 512);
  config.world_size = 3;
  config.train_batch_size = 3;
  MachineFacts machine = roomy_machine();
  machine.free_disk_bytes = {{"/drive", kMiB}};
  machine.available_memory_bytes = kMiB;
  machine.poorest.memory = "rank 2 on host h3";
  machine.poorest.disks = {"/drive/rank1-of-3 of rank 1 on host h2"};
  const std::string text = refusal(config, model_config(4, 256), machine);
  EXPECT_NE(text.find("rank 2 on host h3 has 1.00 MiB of free memory"), std::string::npos) << text;
  for (const char* line : {"\n  ", "\ndisk: "}) {
    const std::string said = line + machine.poorest.disks[0] + " needs ";
    EXPECT_NE(text.find(said), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("this process"), std::string::npos) << text;
}

TEST(Refusal, SuggestsAnotherDirectoryForEachThatIsShort) {
  auto config = train_config(Device::nvme, Device::nvme, 512, 512);
  config.zero.offload_param.directories = {"/other"};
  config.sluice.checkpoints.directory = "/saved";
  MachineFacts machine = roomy_machine();
  machine.free_disk_bytes = {{"/drive", kMiB}, {"/other", 1024 * kGiB}, {"/saved", kMiB}};
  const std::string text = refusal(config, model_config(4, 256), machine);
  EXPECT_TRUE(std::regex_search(
      text, std::regex("set \"checkpoint_dir\" of \"sluice\" to a directory with [0-9]+ MiB free "
                       "and set \"nvme_path\" of \"offload_optimizer\" to a directory with")))
      << text;
}

config::ModelConfig narrow_model(std::int64_t layers) {
  config::ModelConfig model = model_config(layers, 64);
  model.n_head = 4;
  model.n_positions = 32;
  return model;
}

// Weights on the device are updated through tiles in host memory. Weights in host memory need no
// tiles.
TEST(LeastBudgets, HoldWithMoreDeviceMemoryToo) {
  config::TrainConfig config = train_config(Device::cpu, Device::none, 4096, 0);
  config.gradient_clipping = 0;
  config.sluice.activations = config::Activations::keep;
  config.sluice.host_bytes.value = 8 * kMiB;
  const Plan plan = make_plan(config, narrow_model(12), Placement::configured, roomy_machine());
  config.sluice.host_bytes.value = plan.least.host_bytes;
  EXPECT_EQ(refusal(config, narrow_model(12), roomy_machine()), "");
}

TEST(LeastBudgets, HoldBothAtOnceWhereInputsMustStayOnTheDevice) {
  config::TrainConfig config = train_config(Device::none, Device::none, 64, 64);
  config.micro_batch_size = 8;
  config.gradient_accumulation_steps = 6;
  config.train_batch_size = 48;
  config.gradient_clipping = 0;
  config.zero.max_reuse_distance = config.zero.prefetch_bucket_size = 0;
  config.sluice.activations = config::Activations::keep;
  const Plan plan = make_plan(config, narrow_model(2), Placement::configured, roomy_machine());
  config.sluice.device_bytes.value = plan.least.device_bytes;
  config.sluice.host_bytes.value = plan.least.host_bytes;
  EXPECT_EQ(refusal(config, narrow_model(2), roomy_machine()), "");
  config.sluice.device_bytes.value -= 1;
  EXPECT_NE(refusal(config, narrow_model(2), roomy_machine()), "");
}

}  // namespace
}  // namespace sluice::plan
