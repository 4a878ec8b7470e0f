// Plans: a plan that fits is within its budgets; one that does not is refused, with changes that
// fit.

#include "sluice/plan/plan.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/stages.hpp"
#include "sluice/plan/tier_bytes.hpp"
#include "sluice/plan/unit_placement.hpp"
#include "sluice/zero/prefetcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "message_of.hpp"
#include "plans.hpp"

namespace sluice::plan {
namespace {

TEST(Plan, MoreMicroBatchesThanCanBePlannedAreRefusedAtOnce) {
  config::TrainConfig config = train_config(Device::nvme, Device::nvme, 64, 64);
  config.gradient_accumulation_steps = 500'000'000;
  EXPECT_THAT(sluice::test::message_of<InvalidArgument>([&] {
                make_plan(config, model_config(2, 64), Placement::configured, roomy_machine());
              }),
              testing::HasSubstr("train_micro_batch_size_per_gpu"));
  // A change to more micro-batches than the limit is neither suggested nor tried.
  config.micro_batch_size = 500'000'000;
  config.gradient_accumulation_steps = 2;
  EXPECT_THROW(make_plan(config, model_config(2, 64), Placement::configured, roomy_machine()),
               DoesNotFit);
}

TEST(Plan, BuffersOfSwappingHaveNoEffectWhereNothingIsSwapped) {
  auto config = train_config(Device::cpu, Device::cpu, 512, 512);
  const auto without =
      make_plan(config, model_config(2, 64), Placement::configured, roomy_machine());
  config.zero.offload_optimizer.buffer_count = 64;
  config.zero.offload_param.buffer_count = 64;
  config.zero.offload_param.buffer_size = 1 << 20;
  const auto with = make_plan(config, model_config(2, 64), Placement::configured, roomy_machine());
  EXPECT_EQ(with.planned.tiers.host, without.planned.tiers.host);
  EXPECT_EQ(with.choices, without.choices);
}

TEST(Plan, PutsEveryClassOfBytesWhereTheConfigurationAsksForIt) {
  const auto plan = make_plan(train_config(Device::nvme, Device::cpu, 512, 512),
                              model_config(4, 256), Placement::configured, roomy_machine());
  for (const UnitPlacement& unit : plan.units) {
    EXPECT_EQ(unit.states, Tier::nvme);
    EXPECT_EQ(unit.weights, Tier::host);
    EXPECT_EQ(unit.gradients, Tier::host);
    for (const Tier input : unit.inputs) EXPECT_EQ(input, Tier::device);
  }
  EXPECT_EQ(plan.model_size.state_bytes, 16 * plan.model_size.parameters);
  EXPECT_EQ(plan.directories.states, std::vector<std::string>{"/drive"});
  EXPECT_TRUE(plan.directories.scratch.empty());
}

TEST(Plan, KeepsActivationsAsFarAsTheDeviceBudgetGoes) {
  const auto kept = [](const Plan& plan) {
    return std::count_if(plan.units.begin(), plan.units.end(),
                         [](const UnitPlacement& unit) { return unit.activations_saved; });
  };
  const auto row = [](const Plan& plan) { return row_of(plan, "activations").bytes.device; };
  const auto model = model_config(6, 256);
  auto config = train_config(Device::nvme, Device::nvme, 1024, 256);
  const auto plan_with = [&](config::Activations activations, std::uint64_t device_mib) {
    config.sluice.activations = activations;
    config.sluice.device_bytes = {ByteBudget::Kind::bytes, device_mib * kMiB};
    return make_plan(config, model, Placement::configured, roomy_machine());
  };
  const Plan all = plan_with(config::Activations::automatic, 1024);
  EXPECT_EQ(kept(all), 7);  // the head's backward follows at once
  EXPECT_FALSE(all.units.back().activations_saved);
  EXPECT_GT(row(all), 0U);
  const Plan forced = plan_with(config::Activations::keep, 1024);
  EXPECT_EQ(kept(forced), 7);
  EXPECT_EQ(forced.planned.tiers.device, all.planned.tiers.device);

  const Plan none = plan_with(config::Activations::recompute, 1024);
  EXPECT_EQ(kept(none), 0);
  EXPECT_EQ(row(none), 0U);

  const std::uint64_t between = (none.planned.tiers.device + all.planned.tiers.device) / 2 / kMiB;
  const Plan some = plan_with(config::Activations::automatic, between);
  EXPECT_GT(kept(some), 0);
  EXPECT_LT(kept(some), 7);
  EXPECT_LE(some.planned.tiers.device, between * kMiB);
  // The last units save theirs: these stay for the shortest time.
  EXPECT_TRUE(some.units[6].activations_saved);
  EXPECT_FALSE(some.units[0].activations_saved);
  EXPECT_THROW(plan_with(config::Activations::keep, between), DoesNotFit);

  const Plan offloaded = plan_with(config::Activations::offload, 1024);
  EXPECT_EQ(kept(offloaded), 0);
  for (const UnitPlacement& unit : offloaded.units)
    for (const Tier input : unit.inputs) EXPECT_EQ(input, Tier::host);
}

TEST(Plan, WithoutClippingGradientsShareAFewHomes) {
  const auto model = model_config(8, 256);
  const auto plan_with = [&](Device optimizer, double clipping, std::uint64_t host_mib) {
    auto config = train_config(optimizer, Device::cpu, 1024, host_mib);
    config.gradient_clipping = clipping;
    return make_plan(config, model, Placement::configured, roomy_machine());
  };
  const auto lending = [](const Plan& plan) {
    return std::count_if(plan.units.begin(), plan.units.end(),
                         [](const UnitPlacement& unit) { return unit.gradients_use_slots; });
  };
  const Plan clipped = plan_with(Device::cpu, 1, 512);
  EXPECT_EQ(clipped.rings.gradient_slots, 0);
  EXPECT_EQ(lending(clipped), 0);

  const Plan in_memory = plan_with(Device::cpu, 0, 512);
  EXPECT_EQ(in_memory.rings.gradient_slots, 3);
  EXPECT_EQ(lending(in_memory), 8);  // the blocks
  EXPECT_FALSE(in_memory.units[0].gradients_use_slots) << "the head borrows from it";
  EXPECT_FALSE(in_memory.units[9].gradients_use_slots) << "it would leave the slot empty";
  EXPECT_LT(in_memory.planned.tiers.host, clipped.planned.tiers.host);
  // A plan's own need is a sufficient budget.
  EXPECT_EQ(plan_with(Device::cpu, 0, in_memory.planned.tiers.host / kMiB + 1).rings.gradient_slots,
            3);

  // Updates from a drive may be slower than backward, so gradients wait as far as memory allows.
  const Plan roomy = plan_with(Device::nvme, 0, 512);
  EXPECT_EQ(roomy.rings.gradient_slots, 8);
  bool some = false;
  for (std::uint64_t host_mib = roomy.planned.tiers.host / kMiB; host_mib > 30; --host_mib) {
    const Plan plan = plan_with(Device::nvme, 0, host_mib);
    EXPECT_LE(plan.planned.tiers.host, host_mib * kMiB);
    some = some || (plan.rings.gradient_slots > 2 && plan.rings.gradient_slots < 8);
  }
  EXPECT_TRUE(some);
}

TEST(Plan, ReadsStatesAheadWithWhatIsLeftOfHostMemory) {
  const auto model = model_config(4, 1024);  // its tiles are of the usual size
  const auto plan_with = [&](Device optimizer, std::uint64_t host_mib, bool overlap) {
    auto config = train_config(optimizer, Device::cpu, 1024, host_mib);
    config.sluice.overlap = overlap;
    return make_plan(config, model, Placement::configured, roomy_machine());
  };
  const Plan roomy = plan_with(Device::nvme, 2048, true);
  std::uint64_t largest = 0;
  for (const auto& layout : roomy.layouts) largest = std::max(largest, layout.flat_count);
  EXPECT_EQ(roomy.rings.update.read_ahead_tiles,
            (largest - 1) / roomy.rings.update.tile_elements + 1);  // one unit's
  EXPECT_EQ(plan_with(Device::nvme, 2048, false).rings.update.read_ahead_tiles, 0);
  EXPECT_EQ(plan_with(Device::cpu, 2048, true).rings.update.read_ahead_tiles, 0);
  bool some = false;
  bool none = false;
  for (std::uint64_t host_mib = roomy.planned.tiers.host / kMiB; host_mib > 225; --host_mib) {
    const Plan plan = plan_with(Device::nvme, host_mib, true);
    EXPECT_LE(plan.planned.tiers.host, host_mib * kMiB);
    some = some || (plan.rings.update.read_ahead_tiles > 0 &&
                    plan.rings.update.read_ahead_tiles < roomy.rings.update.read_ahead_tiles);
    none = none || plan.rings.update.read_ahead_tiles == 0;
  }
  EXPECT_TRUE(some);
  EXPECT_TRUE(none);
}

TEST(Plan, SumsItsRows) {
  const auto plan = make_plan(train_config(Device::nvme, Device::nvme, 128, 64),
                              model_config(6, 256), Placement::configured, roomy_machine());
  TierBytes sum;
  for (const PlanRow& row : plan.planned.rows) {
    sum.device += row.bytes.device;
    sum.host += row.bytes.host;
    sum.nvme += row.bytes.nvme;
  }
  EXPECT_EQ(sum.device, plan.planned.tiers.device);
  EXPECT_EQ(sum.host, plan.planned.tiers.host);
  EXPECT_EQ(sum.nvme, plan.planned.tiers.nvme);
  ASSERT_EQ(plan.directories.disks.size(), 1U);
  EXPECT_EQ(plan.directories.disks[0].needed_bytes, plan.planned.tiers.nvme);
}

TEST(Plan, MovesTwiceTheWeightsAndOnceTheGradients) {
  auto config = train_config(Device::cpu, Device::cpu, 2048, 2048);
  config.zero.max_reuse_distance = 0;
  config.zero.param_persistence_threshold = 0;
  const auto plan = make_plan(config, model_config(8, 256), Placement::configured, roomy_machine());
  std::uint64_t elements = 0;
  for (const auto& layout : plan.layouts) elements += layout.flat_count;
  // Weights twice, less the units used once (head) or twice in a row (last block), plus the tied
  // embedding's extra trips.
  EXPECT_GT(plan.traffic.h2d_bytes, 3 * elements);
  EXPECT_LT(plan.traffic.h2d_bytes, 5 * elements);
  EXPECT_GE(plan.traffic.d2h_bytes, 2 * elements);
  EXPECT_LT(plan.traffic.d2h_bytes, 3 * elements);
  EXPECT_EQ(plan.traffic.nvme_read_bytes, 0U);
}

TEST(Plan, WithOneSlotNeedsHalfTheDisk) {
  auto config = train_config(Device::nvme, Device::cpu, 256, 256);
  const auto two = make_plan(config, model_config(4, 256), Placement::configured, roomy_machine());
  config.sluice.durability = Durability::none;
  const auto one = make_plan(config, model_config(4, 256), Placement::configured, roomy_machine());
  EXPECT_EQ(two.planned.tiers.nvme, 2 * one.planned.tiers.nvme);
}

TEST(Plan, ResidentHasNoBudgetsAndNoDrive) {
  const auto plan = make_plan(train_config(Device::nvme, Device::nvme, 1, 1), model_config(4, 256),
                              Placement::resident, roomy_machine());
  EXPECT_FALSE(plan.budget.device_bytes.has_value());
  EXPECT_TRUE(plan.directories.disks.empty());
  EXPECT_EQ(plan.planned.tiers.host, 0U);
  EXPECT_EQ(plan.planned.tiers.nvme, 0U);
}

TEST(Plan, ComparesWithTheMachine) {
  const auto config = train_config(Device::nvme, Device::nvme, 512, 512);
  MachineFacts machine = roomy_machine();
  machine.free_disk_bytes = {{"/drive", kMiB}};
  EXPECT_NE(refusal(config, model_config(4, 256), machine).find("/drive needs"), std::string::npos);
  machine = roomy_machine();
  machine.available_memory_bytes = 32 * kMiB;
  EXPECT_NE(refusal(config, model_config(4, 256), machine).find("of free memory"),
            std::string::npos);
  machine = roomy_machine();
  machine.memlock_bytes = 64 * kKiB;
  auto pinned = config;
  pinned.zero.offload_optimizer.pin_memory = true;
  EXPECT_NE(refusal(pinned, model_config(4, 256), machine).find("RLIMIT_MEMLOCK"),
            std::string::npos);
}

TEST(Plan, KeysOfDeepSpeedShapeIt) {
  auto config = train_config(Device::nvme, Device::nvme, 512, 512);
  const auto base = make_plan(config, model_config(8, 512), Placement::configured, roomy_machine());
  EXPECT_EQ(base.schedule.prefetch_units, 1);
  config.zero.prefetch_bucket_size = 0;
  EXPECT_EQ(make_plan(config, model_config(8, 512), Placement::configured, roomy_machine())
                .schedule.prefetch_units,
            0);
  config = train_config(Device::nvme, Device::nvme, 512, 512);
  config.zero.sub_group_size = 600000;
  EXPECT_EQ(make_plan(config, model_config(8, 512), Placement::configured, roomy_machine())
                .rings.update.tile_elements,
            524288U);
  config.zero.offload_param.buffer_count = 7;
  config.zero.offload_param.buffer_size = 1 << 20;
  config.zero.offload_optimizer.buffer_count = 20;
  const auto buffers =
      make_plan(config, model_config(8, 512), Placement::configured, roomy_machine());
  EXPECT_EQ(buffers.rings.mover.tiles, 7);
  EXPECT_EQ(buffers.rings.mover.tile_bytes, 2U << 20U);
  EXPECT_EQ(buffers.rings.update.tiles, 5);
  const auto kept = [](const Plan& plan) {
    return std::count_if(plan.units.begin(), plan.units.end(),
                         [](const UnitPlacement& u) { return u.gathered_until_backward; });
  };
  EXPECT_GT(kept(base), 0);
  config = train_config(Device::nvme, Device::nvme, 512, 512);
  config.zero.max_reuse_distance = 0;
  config.zero.param_persistence_threshold = 0;
  EXPECT_EQ(kept(make_plan(config, model_config(8, 512), Placement::configured, roomy_machine())),
            0);
}

// Gathered bytes at each stage, by the rule: the units that this stage or the prefetched stages
// use, and the units that stay gathered between two of their uses.
std::uint64_t gathered_by_the_rule(const Plan& plan, std::size_t stage) {
  const auto stages = step_stages(plan.layouts);
  std::vector<std::uint64_t> elements;
  for (const zero::UnitLayout& layout : plan.layouts) elements.push_back(layout.flat_count);
  const auto ends = zero::ends_of_ahead(stages, elements, plan.schedule.prefetch_units);
  const auto uses = [&](std::size_t s, std::size_t u) {
    return std::find(stages[s].begin(), stages[s].end(), u) != stages[s].end();
  };
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    bool present = false, before = false, after = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (!uses(s, u)) continue;
      (s <= stage ? before : after) = true;
      present |= s >= stage && s < ends[stage];
    }
    present |= plan.units[u].gathered_until_backward && before && after;
    if (present && plan.units[u].weights != Tier::device) {
      sum += offload::pool_bytes(plan.layouts[u].flat_count * size_of(plan.compute_dtype));
    }
  }
  return sum;
}

TEST(Plan, CountsTheGatheredUnitsOfItsWorstStage) {
  for (const bool tied : {true, false}) {
    for (const std::uint64_t device_mib : {16U, 24U, 64U, 512U}) {
      SCOPED_TRACE(std::to_string(device_mib) + (tied ? " MiB, tied" : " MiB"));
      config::ModelConfig model = model_config(9, 192);
      model.tie_word_embeddings = tied;
      const Plan plan = make_plan(train_config(Device::nvme, Device::nvme, device_mib, 512), model,
                                  Placement::configured, roomy_machine());
      std::vector<std::uint64_t> by_stage;
      for (std::size_t s = 0; s < step_stages(plan.layouts).size(); ++s)
        by_stage.push_back(gathered_by_the_rule(plan, s));
      // The stage with the largest total, which may have fewer gathered units than another.
      EXPECT_THAT(by_stage, ::testing::Contains(row_of(plan, "gathered units").bytes.device));
    }
  }
}

bool chosen(const Plan& plan, const std::string& start) {
  return std::any_of(plan.choices.begin(), plan.choices.end(),
                     [&](const std::string& choice) { return choice.starts_with(start); });
}

TEST(Plan, SaysWhichLimitsItCannotKeep) {
  const config::ModelConfig model = model_config(8, 512);
  const auto plan_of = [&](const config::TrainConfig& config) {
    return make_plan(config, model, Placement::configured, roomy_machine());
  };
  const config::TrainConfig plain = train_config(Device::nvme, Device::nvme, 512, 512);
  const auto check = [&](const char* line, const auto& ask_too_little, const auto& ask_enough) {
    SCOPED_TRACE(line);
    config::TrainConfig config = plain;
    ask_too_little(config.zero);
    EXPECT_TRUE(chosen(plan_of(config), line));
    config.sluice.strict = true;
    EXPECT_EQ(refusal(config, model, roomy_machine()), "") << "within the budgets all the same";
    ask_enough(config.zero);
    EXPECT_FALSE(chosen(plan_of(config), std::string(line).substr(0, std::string(line).find(':'))));
  };
  using Zero = config::ZeroConfig;
  check(
      "sub_group_size: 1 asked for, 524288 elements", [](Zero& z) { z.sub_group_size = 1; },
      [](Zero& z) { z.sub_group_size = 524'288; });
  check(
      "sub_group_size: 0 asked for, 524288 elements", [](Zero& z) { z.sub_group_size = 0; },
      [](Zero& z) { z.sub_group_size = 524'288; });
  check(
      "offload_optimizer.buffer_count: 1 asked for, 12 used (3 tiles of 4)",
      [](Zero& z) { z.offload_optimizer.buffer_count = 1; },
      [](Zero& z) { z.offload_optimizer.buffer_count = 12; });
  check(
      "offload_param.buffer_count: 1 asked for, 3 used",
      [](Zero& z) { z.offload_param.buffer_count = 1; },
      [](Zero& z) { z.offload_param.buffer_count = 3; });
}

TEST(Plan, SaysNothingOfLimitsThatDoNotMatter) {
  // Nothing is in files, and every unit is smaller than the sub-group.
  auto config = train_config(Device::none, Device::none, 512, 512);
  config.zero.sub_group_size = 200'000;
  config.zero.offload_optimizer.buffer_count = 1;
  config.zero.offload_param.buffer_count = 1;
  const Plan plan = make_plan(config, model_config(4, 64), Placement::configured, roomy_machine());
  EXPECT_FALSE(chosen(plan, "sub_group_size") || chosen(plan, "offload_"));
}

// Every plan is within its budgets, or it is refused.
TEST(Plan, IsNeverBeyondItsBudgets) {
  std::mt19937 random(20261121);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int fitted = 0;
  for (int i = 0; i < 200; ++i) {
    auto config = train_config(static_cast<Device>(pick(0, 2)), static_cast<Device>(pick(0, 2)),
                               static_cast<std::uint64_t>(pick(1, 200)),
                               static_cast<std::uint64_t>(pick(1, 200)));
    config.micro_batch_size = pick(1, 4);
    config.gradient_accumulation_steps = pick(1, 4);
    config.sluice.overlap = pick(0, 1) == 1;
    const auto model = model_config(pick(1, 12), 64 * pick(1, 8));
    try {
      const Plan plan = make_plan(config, model, Placement::configured, roomy_machine());
      ++fitted;
      EXPECT_LE(plan.planned.tiers.device, *plan.budget.device_bytes);
      EXPECT_LE(plan.planned.tiers.host, *plan.budget.host_bytes);
    } catch (const DoesNotFit& error) {
      EXPECT_NE(std::string(error.what()).find("does not fit"), std::string::npos);
    }
  }
  EXPECT_GT(fitted, 20);
}

}  // namespace
}  // namespace sluice::plan
