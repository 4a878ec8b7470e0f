// The section "scheduler".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.hpp"
#include "sluice/config/lr_schedule.hpp"

namespace sluice::config::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Scheduler, ReadsItsOwnParametersAndRefusesThoseOfOthers) {
  const JsonText cosine = minimal()
                              .set("scheduler.type", "\"WarmupCosineLR\"")
                              .set("scheduler.params.total_num_steps", "50")
                              .set("scheduler.params.warmup_num_steps", "5");
  EXPECT_EQ(std::get<WarmupCosineLR>(parse(cosine).scheduler).total_num_steps, 50);
  EXPECT_THAT(shown(problems_of(JsonText(cosine).set("scheduler.params.warmup_max_lr", "1"))),
              HasSubstr("scheduler.params.warmup_max_lr: WarmupCosineLR has no such parameter"));
}

TEST(Scheduler, DefaultsDifferByType) {
  const auto warmup = parse(minimal().set("scheduler.type", "\"WarmupLR\"")).scheduler;
  EXPECT_FALSE(std::get<WarmupLR>(warmup).warmup_max_lr.has_value());
  const auto decay = parse(minimal()
                               .set("scheduler.type", "\"WarmupDecayLR\"")
                               .set("scheduler.params.total_num_steps", "2000"))
                         .scheduler;
  EXPECT_EQ(std::get<WarmupDecayLR>(decay).warmup_max_lr, 0.001);
}

JsonText one_cycle() {
  return minimal()
      .set("scheduler.type", "\"OneCycle\"")
      .set("scheduler.params.cycle_min_lr", "0.25")
      .set("scheduler.params.cycle_max_lr", "[0.5]")
      .set("scheduler.params.cycle_first_step_size", "10")
      .set("scheduler.params.cycle_first_stair_count", "3");
}

TEST(OneCycle, TakesItsSecondHalfFromTheFirst) {
  const auto cycle = std::get<OneCycle>(parse(one_cycle()).scheduler);
  EXPECT_EQ(cycle.cycle_max_lr, 0.5);
  EXPECT_EQ(cycle.cycle_second_step_size, 10);
  EXPECT_EQ(cycle.cycle_second_stair_count, 3);
  const auto own = std::get<OneCycle>(
      parse(one_cycle().set("scheduler.params.cycle_second_step_size", "0")).scheduler);
  EXPECT_EQ(own.cycle_second_step_size, 0);
}

TEST(OneCycle, SaysThatItReplacesTheBetas) {
  EXPECT_THAT(parse(one_cycle().set("optimizer.params.betas", "[0.5, 0.6]")).notes,
              Contains("note: scheduler.params.cycle_momentum: OneCycle sets the betas: the first "
                       "cycles with the rate, the second is 0.99, whatever optimizer.params.betas "
                       "says (false keeps the optimizer's)"));
  const TrainConfig without = parse(one_cycle()
                                        .set("scheduler.params.cycle_momentum", "false")
                                        .set("scheduler.params.cycle_min_mom", "0.7"));
  EXPECT_THAT(without.notes, ElementsAre("note: scheduler.params.cycle_min_mom: no effect unless "
                                         "cycle_momentum is true"));
  EXPECT_EQ(betas_of_step(without, 5).beta1, without.optimizer.beta1);
  EXPECT_THAT(parse(one_cycle().set("optimizer.type", "\"sgd\"")).notes,
              Contains("note: scheduler.params.cycle_momentum: no effect, since the optimizer has "
                       "no betas; DeepSpeed cycles nothing else"));
}

TEST(OneCycle, SaysAtWhichStepTheFirstBetaReachesOne) {
  JsonText file = one_cycle();
  file.set("scheduler.params.decay_mom_rate", "0.01");
  EXPECT_THAT(parse(file).notes, Contains("note: scheduler.params.decay_mom_rate: no effect unless "
                                          "decay_step_size is above 0"));
  // After the cycle of 20 steps beta1 is 0.9 (1 + 0.01 k / 2): below 1 up to k = 22, and the 23rd
  // is 1.0035. Step s has k = s - 21.
  const TrainConfig config = parse(file.set("scheduler.params.decay_step_size", "2"));
  EXPECT_EQ(last_step_of_betas(config.scheduler), 43);
  EXPECT_LT(betas_of_step(config, 43).beta1, 1);
  EXPECT_GT(betas_of_step(config, 44).beta1, 1);
  EXPECT_THAT(config.notes, Contains("note: scheduler.params.decay_mom_rate: beta1 grows to 1 "
                                     "after step 43, so a run of more steps is refused"));
}

TEST(Scheduler, RequiresATypeAndTheTotalWhereItDecays) {
  EXPECT_THAT(shown(problems_of(minimal().set("scheduler", "{}"))),
              HasSubstr("scheduler.type: required"));
  EXPECT_THAT(shown(problems_of(minimal().set("scheduler.type", "\"WarmupDecayLR\""))),
              HasSubstr("scheduler.params.total_num_steps: required by WarmupDecayLR"));
  EXPECT_THAT(shown(problems_of(minimal().set("scheduler.type", "\"LambdaLR\""))),
              HasSubstr("\"LambdaLR\" is not supported; there are WarmupLR, "));
  EXPECT_THAT(shown(problems_of(minimal().set("scheduler.type", "\"WarmUpLR2\""))),
              HasSubstr("unknown scheduler \"WarmUpLR2\"; did you mean \"WarmupLR\"?"));
  EXPECT_TRUE(
      std::holds_alternative<std::monostate>(parse(minimal().set("scheduler", "null")).scheduler));
}

TEST(Scheduler, AWarmUpLongerThanTheTrainingIsNoted) {
  const TrainConfig config = parse(minimal()
                                       .set("scheduler.type", "\"WarmupDecayLR\"")
                                       .set("scheduler.params.total_num_steps", "10")
                                       .set("scheduler.params.warmup_num_steps", "20"));
  EXPECT_THAT(config.notes, ElementsAre("note: scheduler.params.total_num_steps: 10 is less than "
                                        "warmup_num_steps, 20: the warm-up is all there is"));
}

TEST(Scheduler, WithoutWarmupHasTheShortestOneAndALine) {
  for (const char* type : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    JsonText json = minimal()
                        .set("scheduler.type", "\"" + std::string(type) + "\"")
                        .set("scheduler.params.warmup_num_steps", "0");
    if (std::string(type) != "WarmupLR") json.set("scheduler.params.total_num_steps", "9");
    const TrainConfig zero = parse(json);
    const TrainConfig one = parse(json.set("scheduler.params.warmup_num_steps", "1"));
    for (int step = 1; step < 12; ++step)
      EXPECT_EQ(learning_rate(zero, step), learning_rate(one, step)) << type << ' ' << step;
    EXPECT_THAT(zero.notes,
                Contains(HasSubstr("note: scheduler.params.warmup_num_steps: 0 means 1")));
    EXPECT_THAT(one.notes, testing::Not(Contains(HasSubstr("warmup_num_steps"))));
  }
}

}  // namespace
}  // namespace sluice::config::test
