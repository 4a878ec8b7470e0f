// The plan of a loop of the user's own: units with calls, frozen ones among them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plans.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan_text.hpp"

namespace sluice::plan {
namespace {

zero::UnitLayout layout_of(const std::string& name, std::int64_t width, bool frozen = false) {
  zero::UnitLayout layout;
  layout.name = name;
  layout.frozen = frozen;
  zero::add_param(layout, name + ".w", {width, width});
  zero::finish_layout(layout, 1);
  return layout;
}

// Three calls: a trained unit with a frozen part, a frozen unit, and one that also uses the first.
OwnModel three_calls() {
  OwnModel model;
  model.layouts = {layout_of("a", 512), layout_of("a.frozen", 512, true),
                   layout_of("b.frozen", 512, true), layout_of("c", 512)};
  model.calls = {{0, 1}, {2}, {0, 3}};
  return model;
}
constexpr std::uint64_t kCount = 512 * std::uint64_t{512};

Plan planned(const config::TrainConfig& config, const OwnModel& model) {
  return make_plan(config, model, Placement::configured, roomy_machine());
}

// A loop of the user's own waits for its checkpoints.
TEST(OwnPlan, HasNoCopiesOfStatesForCheckpoints) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 1024, 1024);
  config.sluice.checkpoints = {.directory = "/checkpoints", .every = 50, .copy_bytes = {}};
  const auto has_copy = [](const UnitPlacement& unit) { return unit.checkpoint_copy; };
  const auto line_with = [](const std::string& part) {
    return ::testing::Contains(::testing::HasSubstr(part));
  };
  const Plan automatic = planned(config, three_calls());
  EXPECT_TRUE(std::none_of(automatic.units.begin(), automatic.units.end(), has_copy));
  EXPECT_THAT(automatic.choices, ::testing::Not(line_with("checkpoint_bytes")));
  config.sluice.checkpoints.copy_bytes = {ByteBudget::Kind::percent, 50};
  const Plan given = planned(config, three_calls());
  EXPECT_TRUE(std::none_of(given.units.begin(), given.units.end(), has_copy));
  EXPECT_THAT(given.choices,
              line_with("checkpoint_bytes: unused, because a loop of the user's own waits"));
}

TEST(OwnPlan, FrozenUnitsHaveWeightsAndNothingElse) {
  const Plan plan = planned(train_config(Device::cpu, Device::cpu, 64, 64), three_calls());
  EXPECT_EQ(plan.model_size.parameters, 4 * kCount);
  EXPECT_EQ(plan.model_size.state_bytes, 32 * kCount + 4 * kCount);
  EXPECT_EQ(row_of(plan, "weights").bytes.host, 8 * kCount);
  EXPECT_EQ(row_of(plan, "gradients").bytes.host, 4 * kCount);
  EXPECT_EQ(row_of(plan, "optimizer states").bytes.host, 20 * kCount);
  EXPECT_THAT(plan_table(plan), ::testing::HasSubstr("(16 bytes per parameter that trains)"));
}

TEST(OwnPlan, AllFrozenIsForEvaluationAndHasNoStatesOnNvme) {
  OwnModel model;
  model.layouts = {layout_of("a", 512, true)};
  model.calls = {{0}};
  const Plan plan = planned(train_config(Device::nvme, Device::cpu, 64, 64), model);
  EXPECT_FALSE(plan.states_all_on_nvme());
  EXPECT_EQ(plan.planned.tiers.nvme, 0U);
  EXPECT_EQ(plan.rings.update.tile_bytes, 0U);
}

// Four micro-batches. A unit is gathered once for both directions when its uses are within the
// prefetch distance.
TEST(OwnPlan, TrafficCountsEveryMicroBatch) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 64);
  config.sluice.overlap = false;  // no prefetch: stages 0 1 2 2 1 0
  // An eighth of it is less than a gradient.
  config.sluice.device_bytes = {ByteBudget::Kind::bytes, 4 * kMiB - 1};
  const Plan plan = planned(config, three_calls());
  const std::uint64_t bytes = 2 * kCount;
  // Unit a in stages 0, 2 to 3 and 5; its frozen part in 0 and 5; b in 1 and 4; c in 2 to 3.
  constexpr std::uint64_t kGathers = 3 + 2 + 2 + 1;  // of a micro-batch
  const std::uint64_t gathers = 4 * kGathers * bytes;
  // Two calls add to the gradient of a, one to that of c. All but the first of a step bring the sum
  // back first.
  const std::uint64_t sends = (8 + 4) * bytes;
  EXPECT_EQ(plan.traffic.h2d_bytes, gathers + sends - 2 * bytes);
  EXPECT_EQ(plan.traffic.d2h_bytes, sends);
}

// The last backward sends them.
TEST(OwnPlan, GradientsAddUpOnTheDeviceWhereItHasRoom) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 64);
  const auto device_of = [&](std::uint64_t bytes) {
    config.sluice.device_bytes = {ByteBudget::Kind::bytes, bytes};
    return planned(config, three_calls());
  };
  const auto bytes_of = [](const Plan& plan) {
    return row_of(plan, "sums of gradients").bytes.device;
  };
  const Plan all = device_of(64 * kMiB);
  EXPECT_EQ(bytes_of(all), 2 * 2 * kCount);
  EXPECT_FALSE(all.units[1].sums_on_device) << "frozen";
  EXPECT_EQ(all.traffic.d2h_bytes, 2 * 2 * kCount);
  EXPECT_THAT(all.choices,
              ::testing::Contains(::testing::HasSubstr("gradients of 2 units add up")));
  const Plan one = device_of(5 * kMiB);
  EXPECT_EQ(bytes_of(one), 2 * kCount) << "an eighth, because activations are unknown";
  EXPECT_TRUE(one.units[3].sums_on_device) << "the last units first";
  OwnModel with_activations = three_calls();
  with_activations.activation_bytes = kMiB;
  config.sluice.device_bytes = {ByteBudget::Kind::bytes, 6 * kMiB};
  EXPECT_EQ(bytes_of(planned(config, with_activations)), 2 * 2 * kCount) << "all that is free";
  config.gradient_accumulation_steps = 1;
  config.train_batch_size = config.micro_batch_size;
  const Plan single = device_of(5 * kMiB);
  EXPECT_TRUE(single.units[0].sums_on_device) << "two calls add to it";
  EXPECT_FALSE(single.units[3].sums_on_device);
  EXPECT_EQ(bytes_of(device_of(64 * kMiB)), 2 * 2 * kCount) << "a loop may call a unit again";
}

// A unit with units inside it is gathered for their calls too.
TEST(OwnPlan, AUnitHasOneBackwardForAllThatIsInsideIt) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 64);
  config.gradient_accumulation_steps = 1;
  config.train_batch_size = config.micro_batch_size;
  config.sluice.device_bytes = {ByteBudget::Kind::bytes, 4 * kMiB};
  OwnModel model = three_calls();
  model.backwards = {1, 1, 1, 1};
  const Plan plan = planned(config, model);
  EXPECT_FALSE(plan.units[0].sums_on_device);
  EXPECT_EQ(plan.traffic.d2h_bytes, 2 * 2 * kCount);
}

TEST(OwnPlan, OnTheHostWeightsAndGradientsAreUsedAtHome) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 64);
  const auto line =
      ::testing::Contains(::testing::HasSubstr("are used there: the device is the host"));
  EXPECT_THAT(planned(config, three_calls()).choices, ::testing::Not(line));
  config.sluice.device_bytes = {};  // automatic
  const Plan plan = planned(config, three_calls());
  EXPECT_THAT(plan.choices, line);
  EXPECT_EQ(plan.traffic.h2d_bytes + plan.traffic.d2h_bytes, 0U);
  EXPECT_EQ(row_of(plan, "weights").bytes.host, 8 * kCount);
  for (const PlanRow& each : plan.planned.rows)
    EXPECT_TRUE(each.component != "gathered units" && each.component != "gradient buffers");
  // Copies come from a drive, and from other ranks.
  config.world_size = 2;
  EXPECT_THAT(planned(config, three_calls()).choices, ::testing::Not(line));
  config = train_config(Device::nvme, Device::nvme, 64, 64);
  config.sluice.device_bytes = {};
  const Plan on_drive = planned(config, three_calls());
  EXPECT_GT(on_drive.traffic.h2d_bytes, 0U);
  EXPECT_GT(row_of(on_drive, "gathered units").bytes.device, 0U);
}

// A run of the program, which is no loop of a user's own.
TEST(Plan, OnAHostWithoutADeviceBudgetMovesNothing) {
  auto config = train_config(Device::cpu, Device::cpu, 1024, 512);
  const auto planned = [&config] {
    return make_plan(config, model_config(8, 256), Placement::configured, roomy_machine());
  };
  const auto line = ::testing::Contains(::testing::HasSubstr("the device is the host"));
  config.gradient_clipping = 0;
  const Plan moving = planned();
  EXPECT_THAT(moving.choices, ::testing::Not(line));
  config.sluice.device_bytes = {};  // automatic
  const Plan at_home = planned();
  EXPECT_THAT(at_home.choices, line);
  EXPECT_EQ(at_home.traffic.h2d_bytes + at_home.traffic.d2h_bytes, 0U);
  EXPECT_EQ(at_home.rings.gradient_slots, moving.rings.gradient_slots);
  EXPECT_EQ(at_home.planned.tiers.host, moving.planned.tiers.host);
  for (const PlanRow& row : at_home.planned.rows)
    EXPECT_TRUE(row.component != "gathered units" && row.component != "gradient buffers");
  for (const UnitPlacement& unit : at_home.units) EXPECT_FALSE(unit.gathered_until_backward);
  // Weights of a drive are gathered.
  config = train_config(Device::cpu, Device::nvme, 1024, 512);
  config.sluice.device_bytes = {};
  EXPECT_GT(planned().traffic.h2d_bytes, 0U);
}

// A sum in a slot would wait for the drive, if there are two slots.
TEST(Plan, OnAHostGradientsAreSummedBesideTwoSlotsOfADrive) {
  auto config = train_config(Device::nvme, Device::cpu, 1024, 512);
  config.gradient_clipping = 0;
  config.sluice.device_bytes = {};  // automatic
  const auto planned = [&config](std::uint64_t host_bytes) {
    config.sluice.host_bytes = {ByteBudget::Kind::bytes, host_bytes};
    return make_plan(config, model_config(8, 256), Placement::configured, roomy_machine());
  };
  const Plan many = planned(512 * kMiB);
  EXPECT_GT(many.rings.gradient_slots, 3);
  EXPECT_EQ(many.traffic.d2h_bytes, 0U);
  const std::uint64_t slot = many.rings.gradient_slot_bytes;
  const std::uint64_t others =
      many.planned.tiers.host - static_cast<std::uint64_t>(many.rings.gradient_slots) * slot -
      static_cast<std::uint64_t>(many.rings.update.read_ahead_tiles) * many.rings.update.tile_bytes;
  const Plan three = planned(others + 3 * slot);
  EXPECT_EQ(three.rings.gradient_slots, 3);
  EXPECT_EQ(three.traffic.d2h_bytes, 0U);
  const Plan two = planned(others + 2 * slot);
  EXPECT_EQ(two.rings.gradient_slots, 2);
  EXPECT_GT(two.traffic.d2h_bytes, two.traffic.h2d_bytes) << "gradients, and no weights";
  EXPECT_GT(two.planned.tiers.device, three.planned.tiers.device);
  EXPECT_THAT(two.choices, ::testing::Contains(::testing::HasSubstr("hold both slots")));
  config.sluice.overlap = false;
  EXPECT_EQ(planned(others + 2 * slot).traffic.d2h_bytes, 0U) << "nothing runs meanwhile";
}

// Half of a GPU belongs to activations of unknown size.
TEST(OwnPlan, StatesTakeHalfOfTheGpuBesideUnknownActivations) {
  OwnModel model = three_calls();
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 256, 64);
  config.zero.offload_optimizer.ratio = 0;
  const auto on_gpu = [&] {
    MachineFacts machine = roomy_machine();
    machine.device.gpu = GpuFacts{0, "NVIDIA Test", kGiB, kGiB};
    machine.device.host_addressable = false;
    return make_plan(config, model, Placement::configured, machine);
  };
  EXPECT_EQ(std::ranges::count_if(on_gpu().units, device_has_all_of), 2) << "all that train";
  config.sluice.device_bytes = {ByteBudget::Kind::bytes, 16 * kMiB};
  EXPECT_EQ(std::ranges::count_if(on_gpu().units, device_has_all_of), 1);
  EXPECT_LE(on_gpu().planned.tiers.device, 8 * kMiB);
  EXPECT_THAT(on_gpu().choices, testing::Contains(testing::HasSubstr("has no more room")));
  model.activation_bytes = kMiB;
  config.sluice.device_bytes = {ByteBudget::Kind::bytes, 120 * kMiB};  // with cuBLAS's workspace
  EXPECT_EQ(std::ranges::count_if(on_gpu().units, device_has_all_of), 2);
}

// Units of one weight each, all on the device.
OwnModel units_on_device(std::size_t count) {
  OwnModel model;
  for (std::size_t u = 0; u < count; ++u) {
    model.layouts.push_back(layout_of(std::to_string(u), 512));
    model.calls.push_back({u});
  }
  return model;
}

// As on a GPU. The host's device has memory of its own where "device_bytes" gives it some.
TEST(OwnPlan, WeightsLeaveHalfOfTheBudgetToUnknownActivations) {
  OwnModel model = units_on_device(16);
  config::TrainConfig config = train_config(Device::cpu, Device::none, 64, 1024);
  config.bf16 = false;
  const auto with_budget = [&](std::uint64_t bytes) {
    config.sluice.device_bytes = {ByteBudget::Kind::bytes, bytes};
    return planned(config, model);
  };
  const auto at_home = [](const Plan& plan) {
    return std::ranges::count(plan.units, Tier::device, &UnitPlacement::weights);
  };
  const auto beside = [](const char* units) {
    return ::testing::Contains(
        "weights: the budget of tier device is used up beside activations; " + std::string(units));
  };
  EXPECT_EQ(at_home(with_budget(64 * kMiB)), 16);
  // Two units are gathered, two gradients leave, autograd makes a third; and small tensors.
  constexpr std::uint64_t kUnit = 4 * kCount;
  constexpr std::uint64_t kMoving = 5 * kUnit + kMiB;
  const Plan half = with_budget(32 * kMiB);
  EXPECT_EQ(at_home(half), (16 * kMiB - kMoving) / kUnit);
  EXPECT_THAT(half.choices, beside("6 units are in host memory"));
  EXPECT_EQ(at_home(with_budget(kMoving)), 0);
  EXPECT_EQ(with_budget(kMoving).schedule.gradients_in_flight, 2);
  EXPECT_EQ(with_budget(kMoving - 1).schedule.gradients_in_flight, 1);

  model.activation_bytes = kMiB;
  EXPECT_EQ(at_home(with_budget(32 * kMiB)), 16) << "activations are planned";
  model.activation_bytes.reset();
  // Gradients and states, tiles, and less than six units.
  config.sluice.host_bytes = {ByteBudget::Kind::bytes, 4 * 16 * kUnit + 5 * kMiB};
  EXPECT_EQ(at_home(with_budget(32 * kMiB)), 16) << "host memory has no room for them";
}

TEST(OwnPlan, GivenActivationsAreCountedAndLetWeightsStay) {
  OwnModel model = three_calls();
  const auto kept = [](const Plan& plan) {
    return std::count_if(plan.units.begin(), plan.units.end(),
                         [](const UnitPlacement& unit) { return unit.gathered_until_backward; });
  };
  const config::TrainConfig config = train_config(Device::cpu, Device::cpu, 16, 64);
  const Plan unknown = planned(config, model);
  EXPECT_EQ(kept(unknown), 0);
  model.activation_bytes = 4 * kMiB;
  const Plan known = planned(config, model);
  EXPECT_GT(kept(known), 0);
  EXPECT_GE(row_of(known, "workspace").bytes.device, 4 * kMiB);
  EXPECT_LE(known.planned.tiers.device, 16 * kMiB);
  model.activation_bytes = 15 * kMiB;
  EXPECT_THROW(planned(config, model), DoesNotFit);
}

// Every update waits for step(), so second states are of use with and without clipping.
TEST(OwnPlan, HasSecondStatesWhereAsked) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 64);
  const auto units_with = [](const Plan& plan) {
    return std::ranges::count_if(plan.units,
                                 [](const UnitPlacement& unit) { return unit.second_states; });
  };
  for (const double clipping : {0.0, 1.0}) {
    config.gradient_clipping = clipping;
    config.sluice.updates.speculative_bytes = {ByteBudget::Kind::bytes, 0};
    EXPECT_EQ(units_with(planned(config, three_calls())), 0);
    config.sluice.updates.speculative_bytes = {};
    const Plan plan = planned(config, three_calls());
    EXPECT_EQ(units_with(plan), 1);
    EXPECT_TRUE(plan.units.back().second_states);
    EXPECT_EQ(row_of(plan, "second states").bytes.host, 12 * kCount);
    EXPECT_EQ(row_of(plan, "second states").note, "for updates that begin before step()");
    EXPECT_THAT(plan.choices, ::testing::Contains(::testing::HasSubstr(
                                  "so the updates of 1 of 4 units begin before step()")));
  }
}

// Updates wait for step(), so the gradients of all units wait, with and without clipping.
TEST(OwnPlan, EveryUnitHasAHomeForItsGradients) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 64);
  config.gradient_clipping = 0;
  const Plan plan = planned(config, three_calls());
  EXPECT_EQ(plan.rings.gradient_slots, 0);
  for (const UnitPlacement& unit : plan.units) EXPECT_FALSE(unit.gradients_use_slots);
}

OwnModel ten_calls() {
  OwnModel model;
  for (std::size_t u = 0; u < 10; ++u) {
    model.layouts.push_back(layout_of("h." + std::to_string(u), 512));
    model.calls.push_back({u});
    model.backwards.push_back(1);
  }
  return model;
}

// The first unit is tied: two calls add to its gradient, which waits at a home of its own.
TEST(OwnPlan, UpdatesInBackwardShareSlotsOfGradients) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 64);
  config.gradient_clipping = 0;
  config.sluice.updates.in_backward = true;
  config.gradient_accumulation_steps = 1;
  OwnModel model = ten_calls();
  model.backwards[0] = 2;
  const auto use_slots = [](const UnitPlacement& unit) { return unit.gradients_use_slots; };
  const Plan plan = planned(config, model);
  EXPECT_EQ(std::ranges::count_if(plan.units, use_slots), 9);
  EXPECT_FALSE(plan.units[0].gradients_use_slots);
  EXPECT_EQ(row_of(plan, "gradients").bytes.host, 2 * kCount);
  EXPECT_EQ(row_of(plan, "gradients").note, "waiting for their update");
  EXPECT_EQ(row_of(plan, "gradient slots").bytes.host, std::uint64_t{3} * 2 * kCount);
  config.gradient_accumulation_steps = 2;  // the sums of all units wait between micro-batches
  EXPECT_EQ(std::ranges::count_if(planned(config, model).units, use_slots), 0);
  EXPECT_THAT(planned(config, model).choices,
              ::testing::Contains(::testing::HasSubstr("optimizer_in_backward: saves no memory")));
}

// Slots take what the budget has left, so that no backward waits for the drive.
TEST(OwnPlan, UpdatesInBackwardOnADriveHaveMoreSlots) {
  config::TrainConfig config = train_config(Device::nvme, Device::cpu, 64, 64);
  config.gradient_clipping = 0;
  config.sluice.updates.in_backward = true;
  config.gradient_accumulation_steps = 1;
  const Plan plan = planned(config, ten_calls());
  EXPECT_EQ(plan.rings.gradient_slots, 10);
  EXPECT_THAT(
      plan.choices,
      ::testing::Contains(::testing::HasSubstr("optimizer_in_backward: 10 slots of gradients")));
}

TEST(OwnPlan, UpdatesInBackwardAreAdvisedWhereTheyMakeItFit) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 64, 38);
  config.gradient_accumulation_steps = 1;
  const auto refusal = [&] {
    try {
      planned(config, ten_calls());
    } catch (const DoesNotFit& error) {
      return std::string(error.what());
    }
    return std::string("fits");
  };
  std::uint64_t mib = 64;
  while (refusal() == "fits") config.sluice.host_bytes.value = --mib * kMiB;
  const char* const advice = "\"optimizer_in_backward\": true";
  EXPECT_THAT(refusal(), ::testing::Not(::testing::HasSubstr(advice)));  // it is clipped
  config.gradient_clipping = 0;
  EXPECT_THAT(refusal(), ::testing::HasSubstr(advice));
  config.sluice.updates.in_backward = true;
  EXPECT_EQ(refusal(), "fits");
}

}  // namespace
}  // namespace sluice::plan
