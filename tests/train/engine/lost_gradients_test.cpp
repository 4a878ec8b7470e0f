// Gradients that find no room on the drive: the step begins anew, with all its micro-batches.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "captured_log.hpp"
#include "sluice/base/error.hpp"
#include "soft_limit.hpp"
#include "train/device/hooked_course.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

// The least memory, so that gradients wait on the drive.
LoopSetup least_memory() {
  LoopSetup setup{.optimizer_device = "nvme", .param_device = "nvme"};
  const TempDir swap;
  train::LoopCore core(config_of(setup, swap.path()), {}, {});
  const Model model;
  const auto add = [&](const std::string& name, const torch::nn::Module& module) {
    train::OwnUnit unit;
    unit.name = name;
    for (const auto& param : module.named_parameters())
      unit.named.push_back({name + "." + param.key(), param.value()});
    core.add_unit(std::move(unit));
  };
  add("embed", *model.embed);
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    add("h." + std::to_string(i), *model.blocks[i]);
  add("head", *model.head);
  core.preview();
  setup.host_bytes = std::to_string(core.plan().least.host_bytes);
  return setup;
}

// Backward of a batch. Files end where they are from the backward of the first unit on.
void run_backward_on_full_disk(Trained& trained, int index, std::optional<FileLimit>& disk) {
  const Batch on = batch(index);
  Tensor x = trained.engine.forward(trained.units.front(), on.inputs);
  x.register_hook([&disk](const Tensor& gradient) {
    disk.emplace(1);
    return gradient;
  });
  for (std::size_t i = 1; i + 1 < trained.units.size(); ++i)
    x = x + trained.engine.forward(trained.units[i], x);
  trained.engine.backward(
      cross_entropy(trained.engine.forward(trained.units.back(), x), on.targets));
}

// The values of a parameter are read after all gradients are at home.
TEST(LostGradients, ACallBetweenMicroBatchesLosesAllOfThem) {
  const LoopSetup setup = least_memory();
  const Course expected = run(setup, /*dropout=*/0, /*steps=*/2);
  const TempDir swap;
  Trained trained(config_of(setup, swap.path()), Model());
  trained.engine.initialize();
  trained.train(0);
  const CapturedLog log;
  std::optional<FileLimit> disk;
  run_backward_on_full_disk(trained, 1, disk);
  EXPECT_THROW(trained.engine.parameter("h.0.up.weight"), IoError);
  disk.reset();
  EXPECT_TRUE(log.contains("those of this step so far are dropped"));
  EXPECT_THAT(message_of([&] { trained.engine.step(); }), HasSubstr("step() without a backward()"));
  expect_same(course_of(trained, 2, 2), expected);
}

}  // namespace
}  // namespace sluice::test
