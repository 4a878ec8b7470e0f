// Checkpoints of several runs in one folder, of a run that went back, and of one that cannot write
// or read them: nothing that is needed is removed, and nothing half loaded is trained on.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "captured_log.hpp"
#include "engine_support.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/models/saved_state.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointLine : public ::testing::Test {
 protected:
  // One micro-batch a step; `keys` of the section "sluice".
  config::TrainConfig config(const std::string& keys = "") const {
    LoopSetup setup;
    setup.accumulation = 1;
    setup.sluice_keys = keys;
    return config_of(setup);
  }
  std::string checkpoint_keys(int every, int keep) const {
    return "\"checkpoint_dir\": \"" + folder_.path() +
           "\", \"checkpoint_every\": " + std::to_string(every) +
           ", \"keep\": " + std::to_string(keep) + ", ";
  }
  static std::vector<double> train(Trained& trained, int begin, int end) {
    std::vector<double> losses;
    for (int i = begin; i < end; ++i) losses.push_back(trained.train(i).loss);
    return losses;
  }
  // Names of the checkpoints in the folder.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const models::Checkpoint& each : models::list_checkpoints(folder_.path()))
      found.push_back(fs::path(each.path).filename().string());
    return found;
  }
  std::string newest() const {
    return fs::path(models::newest_checkpoint(folder_.path())).filename().string();
  }
  // A file in the folder's place: nothing can be written there, whoever the user is.
  void take_folder_away() const {
    fs::rename(folder_.path(), folder_.path() + ".away");
    write_text(folder_.path(), "");
  }
  void bring_folder_back() const {
    fs::remove(folder_.path());
    fs::rename(folder_.path() + ".away", folder_.path());
  }
  static void write_text(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  // Flips a bit in the middle of a file.
  static void damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
    file.seekg(middle);
    const auto byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(middle);
    file.put(byte);
  }

  const TempDir folder_;
};

TEST_F(CheckpointLine, ANewCheckpointIsNotRemovedForOlderOnesWithHigherSteps) {
  const config::TrainConfig keeps_one = config("\"keep\": 1, ");
  {
    Trained first(keeps_one, Model());
    first.engine.initialize();
    train(first, 0, 4);
    first.engine.save_checkpoint(folder_.path());
  }
  Trained second(keeps_one, Model());
  second.engine.initialize();
  train(second, 0, 2);
  second.engine.save_checkpoint(folder_.path());
  EXPECT_THAT(names(), ElementsAre("step-00000002", "step-00000004"));
  train(second, 2, 3);
  second.engine.save_checkpoint(folder_.path());
  EXPECT_THAT(names(), ElementsAre("step-00000003", "step-00000004"))
      << "a run removes its own checkpoints only";
}

TEST_F(CheckpointLine, ARunThatWentBackGoesOnFromWhatItSavedLast) {
  const config::TrainConfig configured = config("\"keep\": 2, ");
  std::vector<double> expected;
  {
    Trained run(configured, Model());
    run.engine.initialize();
    train(run, 0, 2);
    run.engine.save_checkpoint(folder_.path());
    const std::string early = folder_.file("step-00000002");
    train(run, 2, 6);
    run.engine.save_checkpoint(folder_.path());
    EXPECT_EQ(run.engine.load_checkpoint(early), 2);
    train(run, 12, 14);  // on other data
    run.engine.save_checkpoint(folder_.path());
    EXPECT_EQ(newest(), "step-00000004") << "of step 4, and newer than that of step 6";
    EXPECT_THAT(names(), ElementsAre("step-00000004", "step-00000006"));
    expected = train(run, 4, 6);
  }
  Trained resumed(configured, Model());
  resumed.engine.initialize();
  EXPECT_EQ(resumed.engine.load_checkpoint(folder_.path()), 4);
  EXPECT_EQ(train(resumed, 4, 6), expected);
}

TEST_F(CheckpointLine, ACheckpointBehindALinkStays) {
  const TempDir archive;
  Trained run(config("\"keep\": 1, "), Model());
  run.engine.initialize();
  train(run, 0, 1);
  run.engine.save_checkpoint(folder_.path());
  const std::string first = folder_.file("step-00000001");
  fs::rename(first, archive.file("best"));
  fs::create_directory_symlink(archive.file("best"), first);
  train(run, 1, 2);
  run.engine.save_checkpoint(folder_.path());
  EXPECT_FALSE(fs::exists(fs::symlink_status(first)));
  EXPECT_TRUE(fs::exists(archive.file("best/manifest.json")));
  EXPECT_EQ(run.engine.load_checkpoint(archive.file("best")), 1);
}

TEST_F(CheckpointLine, ACheckpointOfTheSameStepOfAnotherRunIsKept) {
  {
    Trained first(config(), Model());
    first.engine.initialize();
    train(first, 0, 2);
    first.engine.save_checkpoint(folder_.path());
  }
  Trained second(config(), Model());
  second.engine.initialize();
  train(second, 0, 2);
  const CapturedLog log;
  second.engine.save_checkpoint(folder_.path());
  EXPECT_THAT(names(), ElementsAre("step-00000002", "step-00000002.2"));
  EXPECT_TRUE(log.contains("beside one of another run, which is kept"));
  const models::Checkpoint others = models::list_checkpoints(folder_.path()).front();
  second.engine.save_checkpoint(folder_.path());  // replaces its own only
  ASSERT_EQ(names().size(), 2U);
  EXPECT_EQ(models::list_checkpoints(folder_.path()).front().line, others.line);
  fs::rename(folder_.file("step-00000002"), folder_.file("elsewhere"));
  second.engine.save_checkpoint(folder_.path());
  EXPECT_THAT(names(), ElementsAre("step-00000002"));
}

TEST_F(CheckpointLine, OfTwoRunsTheOneThatSavedLastIsTakenAndTheOtherNamed) {
  {
    Trained first(config(), Model());
    first.engine.initialize();
    train(first, 0, 5);
    first.engine.save_checkpoint(folder_.path());
  }
  Trained second(config(), Model());
  second.engine.initialize();
  train(second, 0, 2);
  second.engine.save_checkpoint(folder_.path());
  const CapturedLog log;
  EXPECT_EQ(newest(), "step-00000002");
  EXPECT_TRUE(log.contains("checkpoints of more than one run"));
  EXPECT_TRUE(log.contains("step-00000005 is of another run"));
}

TEST_F(CheckpointLine, TheOneThatSavedLastIsTakenWhateverTheClockSaid) {
  {
    Trained first(config(), Model());
    first.engine.initialize();
    train(first, 0, 2);
    first.engine.save_checkpoint(folder_.path());
  }
  const std::string path = folder_.file("step-00000002");
  models::RunState state = models::read_state(path).state;
  constexpr std::int64_t kHour = 3'600'000'000'000;
  state.saved_at += kHour;  // the clock was fast
  state.step = state.order = 3;
  nvme::IoEngine io(nvme::make_backend(nvme::BackendKind::threads, 4, 1).backend, {});
  offload::SwapStore::open(path, io, Durability::process, nvme::DirectIo::automatic)
      ->commit(3, models::to_json(state));
  Trained second(config(), Model());
  second.engine.initialize();
  train(second, 0, 2);
  second.engine.save_checkpoint(folder_.path());
  EXPECT_EQ(newest(), "step-00000002.2");
}

TEST_F(CheckpointLine, ADamagedNewestCheckpointIsNamedWithTheWholeOneBeforeIt) {
  {
    Trained run(config(checkpoint_keys(2, 2)), Model());
    run.engine.initialize();
    train(run, 0, 4);
  }
  const std::string newest_path = folder_.file("step-00000004");
  const std::string manifest = newest_path + "/manifest.json";
  damage(manifest);
  EngineOptions options;
  options.resume = true;
  {
    Trained resumed(config(checkpoint_keys(2, 2)), Model(), options);
    const std::string message = message_of([&] { resumed.engine.initialize(); });
    EXPECT_THAT(message, HasSubstr(newest_path));
    EXPECT_THAT(message, HasSubstr(folder_.file("step-00000002")));
  }
  damage(manifest);  // as it was
  damage(newest_path + "/states.0.swap");
  Trained resumed(config(checkpoint_keys(2, 2)), Model(), options);
  const std::string message = message_of([&] { resumed.engine.initialize(); });
  EXPECT_THAT(message, HasSubstr("is damaged"));
  EXPECT_THAT(message,
              HasSubstr("the newest other checkpoint is " + folder_.file("step-00000002")));
}

TEST_F(CheckpointLine, AfterALoadThatFailedNothingTrainsUntilOneSucceeds) {
  Trained run(config(), Model());
  run.engine.initialize();
  train(run, 0, 2);
  run.engine.save_checkpoint(folder_.file("whole"));
  const std::vector<double> expected = train(run, 2, 4);
  run.engine.save_checkpoint(folder_.file("damaged"));
  damage(folder_.file("damaged/step-00000004/states.0.swap"));
  EXPECT_THAT(message_of([&] { run.engine.load_checkpoint(folder_.file("damaged")); }),
              HasSubstr("is damaged"));
  const std::string mixed = "was loaded in part only";
  EXPECT_THAT(message_of([&] { run.train(4); }), HasSubstr(mixed));
  EXPECT_THAT(message_of([&] { run.engine.save_checkpoint(folder_.path()); }), HasSubstr(mixed));
  EXPECT_THAT(message_of([&] { run.engine.finish(); }), HasSubstr(mixed));
  EXPECT_THAT(message_of([&] { run.engine.load_checkpoint(folder_.file("absent")); }),
              HasSubstr("absent"));
  EXPECT_THAT(message_of([&] { run.train(4); }), HasSubstr(mixed)) << "still";
  EXPECT_EQ(run.engine.load_checkpoint(folder_.file("whole")), 2);
  EXPECT_EQ(train(run, 2, 4), expected);
}

TEST_F(CheckpointLine, OneThatCannotBeWrittenIsMissingAndTrainingGoesOn) {
  Trained run(config(checkpoint_keys(2, 4)), Model());
  run.engine.initialize();
  train(run, 0, 3);
  EXPECT_THAT(names(), ElementsAre("step-00000002"));
  const CapturedLog log;
  take_folder_away();
  train(run, 3, 5);
  bring_folder_back();
  EXPECT_TRUE(log.contains("the checkpoint of step 4 is missing"));
  EXPECT_THAT(names(), ElementsAre("step-00000002"));
  train(run, 5, 7);
  EXPECT_THAT(names(), ElementsAre("step-00000002", "step-00000006"));
  EXPECT_THAT(message_of([&] { run.engine.finish(); }),
              HasSubstr("1 checkpoint could not be written"));
  EXPECT_THAT(names(), ElementsAre("step-00000002", "step-00000006", "step-00000007"))
      << "the last state is saved in spite of the error";
}

TEST_F(CheckpointLine, ANameThatIsTooLongForItsFilesIsRefusedAtTheStart) {
  std::string longest = folder_.path();
  while (longest.size() < 4000) longest += "/" + std::string(24, 'd');
  const auto start = [&] {
    Trained run(config("\"checkpoint_dir\": \"" + longest + "\", "), Model());
    run.engine.initialize();
  };
  EXPECT_THAT(message_of(start), HasSubstr("longer than the system takes"));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

// Another run may have locked the folder anew.
TEST_F(CheckpointLine, OneInAFolderWhoseLockWasRemovedIsMissing) {
  Trained run(config(checkpoint_keys(2, 1)), Model());
  run.engine.initialize();
  train(run, 0, 3);
  const CapturedLog log;
  fs::remove(folder_.file("lock"));
  train(run, 3, 5);
  EXPECT_TRUE(log.contains("the checkpoint of step 4 is missing"));
  EXPECT_TRUE(log.contains("was removed or replaced while this run held the directory"));
  EXPECT_THAT(message_of([&] { run.engine.save_checkpoint(folder_.path()); }),
              HasSubstr("was removed or replaced"));
  EXPECT_THAT(message_of([&] { run.engine.finish(); }), HasSubstr("could not be written"));
  EXPECT_THAT(names(), ElementsAre("step-00000002"));
}

TEST_F(CheckpointLine, OneThatCannotBeWrittenEndsAStrictRun) {
  Trained run(config("\"strict\": true, " + checkpoint_keys(2, 4)), Model());
  run.engine.initialize();
  train(run, 0, 3);
  take_folder_away();
  EXPECT_THROW(train(run, 3, 5), IoError);
  bring_folder_back();
}

// States that older versions wrote say nothing of a line.
TEST_F(CheckpointLine, StatesWithoutALineAreReadAndKept) {
  const models::RunState state = models::parse_run_state(
      R"({"model": "m", "step": 7, "updates": 6, "seed": 1, "compute_dtype": "bf16",
          "compute_threads": 1, "world_size": 1, "version": "0",
          "units": [{"name": "u", "flat_count": 1, "params":
            [{"name": "p", "offset": 0, "shape": [1]}]}]})",
      "here");
  EXPECT_EQ(state.line, "");
  EXPECT_EQ(state.order, 7);
}

}  // namespace
}  // namespace sluice::test
