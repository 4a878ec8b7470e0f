// Calls of a hooked loop that are refused, after which the model trains on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "captured_log.hpp"
#include "file_text.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "train/device/hooked_course.hpp"

namespace sluice::train {
namespace {

using sluice::test::Course;

// One step of two micro-batches, with `between` them.
Course take_a_step(const std::function<void(HookedLoop&)>& between) {
  HookedLoop loop(sluice::test::config_of({}));
  test::HookedModel hooked(loop, sluice::test::Model(), 2);
  hooked.take_micro_batch(0, torch::kCPU);
  between(loop);
  hooked.take_micro_batch(1, torch::kCPU);
  Course course;
  const StepResult result = loop.end_step();
  course.losses.push_back(result.loss);
  course.norms.push_back(result.gradient_norm);
  for (const std::string& name : sluice::test::parameter_names())
    course.weights.push_back(sluice::test::bytes_of(loop.parameter(name)));
  loop.finish();
  return course;
}

TEST(HookedErrors, AGradientOfAnotherShapeChangesNothing) {
  const Course expected = take_a_step([](HookedLoop&) {});
  const Course refused = take_a_step([](HookedLoop& loop) {
    EXPECT_THROW(loop.set_gradient("h.1.up.weight", torch::ones({3})), Error);
    EXPECT_THROW(loop.set_gradient("h.1.up.bias", torch::ones({1})), Error);
  });
  sluice::test::expect_same(refused, expected);
}

TEST(HookedErrors, ValuesThatCannotBeCopiedLeaveTheGradient) {
  const Course expected = take_a_step([](HookedLoop&) {});
  const Course refused = take_a_step([](HookedLoop& loop) {
    const torch::Tensor meta = torch::empty({4 * sluice::test::kWidth}, torch::kMeta);
    EXPECT_ANY_THROW(loop.set_gradient("h.1.up.bias", meta));
  });
  sluice::test::expect_same(refused, expected);
}

TEST(HookedErrors, AGradientIsSetAfterABackward) {
  HookedLoop loop(sluice::test::config_of({}));
  test::HookedModel hooked(loop, sluice::test::Model(), 2);
  EXPECT_THROW(loop.set_gradient("h.1.up.bias", torch::ones({4 * sluice::test::kWidth})), Error);
}

// As adapters that a forward leaves out.
TEST(HookedErrors, AParameterMayNeedNoGradientDuringAForward) {
  HookedLoop loop(sluice::test::config_of({}));
  const sluice::test::Model model;
  torch::Tensor bias = model.blocks[1]->up->bias;
  test::HookedModel hooked(loop, model, 2);
  bias.requires_grad_(false);
  hooked.take_micro_batch(0, torch::kCPU);
  bias.requires_grad_(true);
  EXPECT_EQ(loop.gradient("h.1.up.bias").abs().sum().item<double>(), 0);
  hooked.take_micro_batch(1, torch::kCPU);
  EXPECT_GT(loop.gradient("h.1.up.bias").abs().sum().item<double>(), 0);
  EXPECT_TRUE(loop.end_step().updated);
}

TEST(HookedErrors, AParameterThatTrainsNeedsItsGradientAtTheEndOfAStep) {
  HookedLoop loop(sluice::test::config_of({}));
  const sluice::test::Model model;
  torch::Tensor bias = model.blocks[1]->up->bias;
  test::HookedModel hooked(loop, model, 1);
  hooked.take_micro_batch(0, torch::kCPU);
  bias.requires_grad_(false);
  EXPECT_THAT(sluice::test::message_of<InvalidArgument>([&] { loop.end_step(); }),
              testing::HasSubstr("parameter h.1.up.bias was to be trained"));
  bias.requires_grad_(true);
  EXPECT_TRUE(loop.end_step().updated);
}

// The states of the first load were taken up, and what belongs to them was not. The last step's
// update has failed, or not.
TEST(HookedErrors, ACheckpointLoadedAfterALoadThatFailedReplacesTheLastStep) {
  // With a rate of 3e38 and a decay, weights of norms leave the range of fp32.
  for (const double rate : {3e38, 1e-2}) {
    SCOPED_TRACE(rate);
    const sluice::test::TempDir swap;
    const sluice::test::TempDir folder;
    HookedLoop loop(
        sluice::test::config_of({.optimizer_device = "nvme", .accumulation = 1}, swap.path()));
    test::HookedModel hooked(loop, sluice::test::Model(), 1);
    hooked.take_steps(0, 1);
    loop.save_checkpoint(folder.path());
    const Course expected = hooked.take_steps(1, 2);
    EXPECT_EQ(loop.load_checkpoint(folder.path()), 1);
    const std::string committed = sluice::test::file_text(swap.file("manifest.json"));
    EXPECT_NE(committed, "");
    hooked.take_micro_batch(1, torch::kCPU);
    loop.end_step({{.learning_rate = rate, .weight_decay = 1}});
    const sluice::test::CapturedLog log;
    loop.load_failed(folder.path());
    EXPECT_THROW(hooked.take_micro_batch(2, torch::kCPU), StorageError);
    EXPECT_EQ(loop.load_checkpoint(folder.path()), 1);
    EXPECT_EQ(log.contains("replaced by a checkpoint: step 2: the update of "), rate > 1);
    EXPECT_EQ(sluice::test::file_text(swap.file("manifest.json")), committed);
    sluice::test::expect_same(hooked.take_steps(1, 2), expected);
    loop.finish();
  }
}

// The caller may mend the cause and end the step then: it has one update.
TEST(HookedErrors, FilesOfMonitorsThatCannotBeOpenedLeaveTheStep) {
  const auto course_of = [](const std::function<void(HookedLoop&)>& before, const std::string& to) {
    config::TrainConfig config = sluice::test::config_of({});
    config.monitors.csv = {.enabled = !to.empty(), .output_path = to, .job_name = "run"};
    HookedLoop loop(config);
    test::HookedModel hooked(loop, sluice::test::Model(), 2);
    hooked.take_micro_batch(0, torch::kCPU);
    hooked.take_micro_batch(1, torch::kCPU);
    before(loop);
    Course course;
    EXPECT_EQ(loop.end_step().step, 1);
    for (const std::string& name : sluice::test::parameter_names())
      course.weights.push_back(sluice::test::bytes_of(loop.parameter(name)));
    loop.finish();
    return course;
  };
  const sluice::test::TempDir folder;
  const std::string output = folder.file("in_the_way");
  std::ofstream(output) << "a file";
  const Course refused = course_of(
      [&](HookedLoop& loop) {
        EXPECT_THROW(loop.end_step(), IoError);
        std::filesystem::remove(output);
      },
      output);
  sluice::test::expect_same(refused, course_of([](HookedLoop&) {}, ""));
  EXPECT_TRUE(std::filesystem::exists(output + "/run/Train_Samples_lr.csv"));
}

}  // namespace
}  // namespace sluice::train
