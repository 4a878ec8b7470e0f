// Checkpoints that are written while steps go on: they hold the states of their own step, whatever
// steps follow; steps have the bits of steps without checkpoints; a drive that fails costs a
// checkpoint and nothing else.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "captured_log.hpp"
#include "checkpoint_drive.hpp"
#include "file_text.hpp"
#include "saved/checkpoint.hpp"
#include "saved/saved_state.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/zero/communicator.hpp"
#include "train/device/device_run.hpp"

namespace sluice::train {
namespace {

using config::ByteBudget;
using test::Drive;
using test::Home;
using test::io_over;
using test::RunCase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kSteps = 5;

struct Result {
  std::vector<double> losses;
  std::map<std::int64_t, std::string> states;  // by step, the bytes of its checkpoint
  Progress progress;
};

struct Checkpoints {
  std::int64_t every = 0;
  ByteBudget copies = {};  // all units have one
  bool overlap = true;
  bool strict = false;
  int ranks = 1;
};

class CheckpointWriting : public test::DeviceRun {
 protected:
  plan::Plan plan_with(const RunCase& each, const Checkpoints& checkpoints, bool on_gpu) const {
    config::TrainConfig config = config_of(each);
    config.sluice.checkpoints.directory = folder();
    config.sluice.checkpoints.every = checkpoints.every;
    config.sluice.checkpoints.keep = 100;
    config.sluice.checkpoints.copy_bytes = checkpoints.copies;
    config.sluice.overlap = checkpoints.overlap;
    config.sluice.strict = checkpoints.strict;
    config.world_size = checkpoints.ranks;
    config.train_batch_size *= checkpoints.ranks;
    plan::Plan plan =
        plan::make_plan(config, model_of(each), each.placement, machine_of(each, on_gpu));
    if (each.halves_in_weights) test::leave_halves_to_weights(plan);
    return plan;
  }
  // A run in host memory before its first step. Its checkpoints go to `folder`.
  struct BegunRun {
    BegunRun(plan::Plan of, const std::string& folder)
        : plan(std::move(of)), resources(test::make_resources(plan, {SwapMode::create})) {
      std::filesystem::create_directory(folder);
      initialise_states(resources, kSeed, std::nullopt);
      begin_progress(progress, *resources.communicator);
    }
    const plan::Plan plan;
    RunResources resources;
    Progress progress;
  };
  std::string folder() const { return file("checkpoints"); }

  Result run(const RunCase& each, const Checkpoints& checkpoints, bool on_gpu, Drive& drive) const {
    forget_run();
    std::filesystem::remove_all(folder());
    std::filesystem::create_directory(folder());
    const plan::Plan plan = plan_with(each, checkpoints, on_gpu);
    Result result;
    {
      RunResources resources(plan, {SwapMode::create}, nullptr,
                             on_gpu ? test::make_stand_in_gpu(plan.planned.tiers.device)
                                    : make_run_device(plan, nullptr));
      initialise_states(resources, kSeed, std::nullopt);
      StepRunner runner(resources, kSeed);
      CheckpointWriter writer(resources, io_over(drive));
      begin_progress(result.progress, *resources.communicator);
      train(resources, runner, writer, result);
      EXPECT_LE(resources.host_pool->usage().peak_live_bytes, plan.planned.tiers.host);
    }
    for (const models::Checkpoint& found : models::list_checkpoints(folder()))
      result.states[found.step] = sluice::test::file_text(found.path + "/states.0.swap");
    return result;
  }
  void train(RunResources& resources, StepRunner& runner, CheckpointWriter& writer,
             Result& result) const {
    Progress& progress = result.progress;
    bool pending = false;
    const auto commit = [&](bool ending) {
      if (!std::exchange(pending, false)) return;
      commit_step(resources, writer, progress, {.seed = kSeed, .settings = {}}, ending);
    };
    while (progress.step < kSteps) {
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward = runner.forward_backward(
          data(), progress.step + 1, progress.loss_scaler.scale(), update, [&] { commit(false); });
      result.losses.push_back(backward.loss);
      runner.end_step(backward, update, progress);
      pending = true;
    }
    runner.finish_updates();
    commit(true);
  }

  Drive undisturbed_;
};

class CheckpointsBesideSteps : public CheckpointWriting {
 protected:
  CheckpointsBesideSteps() { at::set_num_threads(1); }
};

// Over a drive so slow that each checkpoint is still written while the next steps update.
TEST_P(CheckpointsBesideSteps, HoldTheStatesOfTheirStep) {
  for (const bool on_gpu : {false, true}) {
    const Result waiting =
        run(GetParam(), {.every = 1, .copies = {}, .overlap = false}, on_gpu, undisturbed_);
    for (const ByteBudget& copies : {ByteBudget{}, ByteBudget{ByteBudget::Kind::percent, 60},
                                     ByteBudget{ByteBudget::Kind::bytes, 0}}) {
      Drive drive;
      drive.slow = true;
      const Result beside = run(GetParam(), {.every = 2, .copies = copies}, on_gpu, drive);
      EXPECT_EQ(beside.losses, waiting.losses);
      EXPECT_EQ(beside.progress.missed.count, 0);
      EXPECT_EQ(beside.progress.checkpoint_step, 4 + (beside.states.contains(5) ? 1 : 0));
      for (const auto& [step, states] : beside.states)
        EXPECT_TRUE(states == waiting.states.at(step)) << "step " << step << " on_gpu " << on_gpu;
      EXPECT_TRUE(beside.states.contains(2) && beside.states.contains(4));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Homes, CheckpointsBesideSteps,
    testing::Values(RunCase{.name = "split"}, RunCase{.name = "without_clipping", .clipping = 0},
                    RunCase{.name = "fp32", .master = config::MasterFormat::fp32},
                    RunCase{.name = "weights_on_device", .weights = Home::none},
                    RunCase{.name = "halves", .weights = Home::none, .halves_in_weights = true},
                    RunCase{.name = "all_on_device", .states = Home::none, .weights = Home::none},
                    RunCase{.name = "speculative", .clipping = 1e9, .speculative = true},
                    RunCase{.name = "bf16_moments", .moments = config::MomentFormat::bf16},
                    RunCase{.name = "nvme", .states = Home::nvme, .weights = Home::nvme}),
    [](const auto& each) { return each.param.name; });

// A drive that never answers until the test says so: three steps go on, with all their updates.
TEST_F(CheckpointWriting, StepsDoNotWaitForTheDrive) {
  const RunCase each{.clipping = 0};
  Drive drive;
  drive.answers = false;
  std::filesystem::create_directory(folder());
  const plan::Plan plan = plan_with(each, {.every = 1}, false);
  RunResources resources = test::make_resources(plan, {SwapMode::create});
  initialise_states(resources, kSeed, std::nullopt);
  StepRunner runner(resources, kSeed);
  CheckpointWriter writer(resources, io_over(drive));
  Progress progress;
  begin_progress(progress, *resources.communicator);
  const auto step = [&] {
    const UpdateSettings update = next_update(resources, progress, false);
    const BackwardResult backward =
        runner.forward_backward(data(), progress.step + 1, 1, update, {});
    runner.end_step(backward, update, progress);
    runner.finish_updates();
  };
  step();
  writer.begin(progress, {.seed = kSeed, .settings = {}}, folder());
  for (int i = 0; i < 3; ++i) {
    step();
    writer.poll(progress);
    EXPECT_EQ(writer.writing(), 1);
    EXPECT_EQ(progress.checkpoint_step, 0);
    EXPECT_THAT(models::list_checkpoints(folder()), IsEmpty());
  }
  drive.answers = true;
  drive.answers.notify_all();
  writer.finish(progress);
  EXPECT_EQ(writer.writing(), std::nullopt);
  EXPECT_EQ(progress.checkpoint_step, 1);
  EXPECT_EQ(models::list_checkpoints(folder()).size(), 1U);
}

TEST_F(CheckpointWriting, AFailingDriveCostsOneCheckpoint) {
  const RunCase each{.clipping = 0};
  const Result none = run(each, {}, false, undisturbed_);
  for (const std::uint64_t copies : {0U, 100U}) {
    Drive drive;
    drive.fault.op = nvme::IoOp::write;
    drive.fault.requests_until = 3;  // within the first checkpoint
    const Result result =
        run(each,
            {.every = 2,
             .copies = {copies == 0 ? ByteBudget::Kind::bytes : ByteBudget::Kind::percent, copies}},
            false, drive);
    EXPECT_EQ(result.losses, none.losses);
    EXPECT_EQ(result.progress.missed.count, 1);
    EXPECT_THAT(result.progress.missed.last_problem, HasSubstr("the checkpoint of step 2 is"));
    std::vector<std::int64_t> steps;
    for (const auto& [step, states] : result.states) steps.push_back(step);
    EXPECT_THAT(steps, ElementsAre(4, 5));
    EXPECT_FALSE(std::filesystem::exists(folder() + "/step-00000002.tmp"));
  }
}

TEST_F(CheckpointWriting, StrictEndsTheRunWithTheDrivesError) {
  Drive drive;
  drive.fault.op = nvme::IoOp::write;
  drive.fault.requests_until = 3;
  EXPECT_THROW(run({.clipping = 0}, {.every = 2, .strict = true}, false, drive), IoError);
  EXPECT_THAT(models::list_checkpoints(folder()), IsEmpty());
}

// As when an error ends the run: the checkpoint is whole when the writer is gone.
TEST_F(CheckpointWriting, IsEndedByTheDestructor) {
  BegunRun begun(plan_with({}, {.every = 1}, false), folder());
  {
    Drive drive;
    drive.slow = true;
    CheckpointWriter writer(begun.resources, io_over(drive));
    writer.begin(begun.progress, {.seed = kSeed, .settings = {}}, folder());
  }
  EXPECT_EQ(models::list_checkpoints(folder()).size(), 1U);
}

TEST_F(CheckpointWriting, TheDestructorTellsOfOneThatFailed) {
  BegunRun begun(plan_with({}, {.every = 1}, false), folder());
  sluice::test::CapturedLog log;
  {
    Drive drive;
    drive.fault.op = nvme::IoOp::write;
    drive.fault.requests_until = 3;
    CheckpointWriter writer(begun.resources, io_over(drive));
    writer.begin(begun.progress, {.seed = kSeed, .settings = {}}, folder());
  }
  EXPECT_TRUE(log.contains("the checkpoint of step 0 is missing: "));
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
}

// The first write fails at once, and others are on their way: those of the unit's other parts where
// the unit has a copy, or else those of other units.
TEST_F(CheckpointWriting, AFailedOneEndsWhenItsOtherWritesHave) {
  for (const std::uint64_t copied : {0U, 100U}) {
    const ByteBudget copies{ByteBudget::Kind::percent, copied};
    BegunRun begun(plan_with({}, {.every = 1, .copies = copies}, false), folder());
    Drive drive;
    drive.fault.op = nvme::IoOp::write;
    drive.fault.requests_until = 0;
    drive.answers = false;
    drive.answered_writes =
        copied == 0 ? static_cast<int>(begun.plan.state_format.part_count()) : 1;
    CheckpointWriter writer(begun.resources, io_over(drive));
    writer.begin(begun.progress, {.seed = kSeed, .settings = {}}, folder());
    const auto begin = std::chrono::steady_clock::now();
    while (drive.held == 0) {
      ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // A writer that does not wait for them waits later, in the destructor of its files.
    std::thread answer([&drive] {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      drive.answers = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_NO_THROW(writer.poll(begun.progress)) << "its writes are under way";
    EXPECT_EQ(writer.writing(), 0);
    answer.join();
    EXPECT_THROW(writer.finish(begun.progress), IoError);
    EXPECT_TRUE(std::filesystem::is_empty(folder()));
  }
}

// Another rank has no room, and this one learns of it while its own files are made and its states
// are copied.
TEST_F(CheckpointWriting, AnotherRanksErrorEndsItAfterItsOwnWork) {
  for (const bool holds_copies : {false, true}) {
    std::filesystem::create_directory(folder());
    auto ranks = zero::make_thread_communicators(2);
    auto gathering = zero::make_thread_communicators(2);
    std::thread other([there = std::move(ranks[1]), directory = folder()] {
      models::do_on_first(*there, directory, [] { return std::string(); });
      EXPECT_THROW(models::do_on_all(*there, directory, [] { throw Error("no room"); }), Error);
    });
    const plan::Plan plan = plan_with({}, {.every = 1, .ranks = 2}, false);
    RunResources resources(
        plan, {SwapMode::create}, nullptr, make_run_device(plan, nullptr),
        {.communicator = std::move(ranks[0]), .gather_communicator = std::move(gathering[0])});
    initialise_states(resources, kSeed, std::nullopt);
    Progress progress;
    std::atomic<int> ended{0};
    const auto take_long = [&ended] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ++ended;
    };
    CheckpointWriter writer(resources, [&] {
      if (!holds_copies) take_long();
      return io_over(undisturbed_)();
    });
    std::atomic<bool> first{true};
    Ticket visit;
    if (holds_copies) {
      visit = resources.updater->begin_visit(0, StateUpdater::Access::read,
                                             {.begin = 0, .count = 1}, [&](const auto&) {
                                               if (first.exchange(false))
                                                 take_long();  // the copies come after it
                                             });
    }
    EXPECT_THROW(writer.begin(progress, {.seed = kSeed, .settings = {}}, folder()), Error);
    EXPECT_EQ(ended, 1) << "holds_copies " << holds_copies;
    EXPECT_TRUE(std::filesystem::is_empty(folder()));
    other.join();
    if (holds_copies) visit.finish();
  }
}

// Every unit has a copy, so nobody but the writer waits for the files.
TEST_F(CheckpointWriting, FilesThatCannotBeMadeCostTheCheckpoint) {
  BegunRun begun(plan_with({}, {.every = 1}, false), folder());
  CheckpointWriter writer(begun.resources, []() -> std::unique_ptr<nvme::IoEngine> {
    throw InvalidArgument("no queue");
  });
  writer.begin(begun.progress, {.seed = kSeed, .settings = {}}, folder());
  // As an error of the drive, which the run goes on after.
  EXPECT_THROW(writer.finish(begun.progress), StorageError);
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
}

}  // namespace
}  // namespace sluice::train
