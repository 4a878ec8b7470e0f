// A loop of the user's own goes on where it was: from checkpoints, and from its swap directory.

#include <gmock/gmock.h>

#include "engine_support.hpp"
#include "sluice/models/export.hpp"
#include "sluice/models/safetensors.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

// Losses of steps [begin, end), of one micro-batch each.
std::vector<double> losses_of(Trained& trained, int begin, int end) {
  std::vector<double> losses;
  for (int i = begin; i < end; ++i) losses.push_back(trained.train(i).loss);
  return losses;
}

LoopSetup one_micro_batch(const std::string& optimizer = "cpu") {
  LoopSetup setup;
  setup.accumulation = 1;
  setup.optimizer_device = optimizer;
  return setup;
}

TEST(OwnLoopCheckpoint, GoesOnWithTheSameLosses) {
  const TempDir folder;
  const config::TrainConfig config = config_of(one_micro_batch());
  std::vector<double> losses;
  {
    Trained trained(config, Model());
    trained.engine.initialize();
    losses_of(trained, 0, 5);
    trained.engine.save_checkpoint(folder.path());
    trained.engine.save_checkpoint(folder.path());  // of the same step: replaced
    losses = losses_of(trained, 5, 10);
    // Back in time within one engine.
    EXPECT_EQ(trained.engine.load_checkpoint(folder.path()), 5);
    EXPECT_EQ(losses_of(trained, 5, 10), losses);
  }
  torch::manual_seed(1234);
  Trained other(config, Model());
  other.engine.initialize();
  losses_of(other, 7, 9);
  EXPECT_EQ(other.engine.load_checkpoint(folder.path()), 5);
  EXPECT_EQ(other.engine.steps(), 5);
  EXPECT_EQ(losses_of(other, 5, 10), losses);
}

// Half of the states are in memory too, 24 MiB, and no step but the last one is committed: their
// bytes are written at the end, and the commit comes after them.
TEST(OwnLoopCheckpoint, ACommitWaitsForTheStatesThatWereInMemoryOnly) {
  const TempDir swap;
  LoopSetup setup = one_micro_batch("nvme");
  setup.sluice_keys = "\"cache_bytes\": \"50%\", \"commit_every\": 1000, ";
  const config::TrainConfig config = config_of(setup, swap.path());
  const auto weight_after = [&](int steps, const EngineOptions& options) {
    Engine engine(config, options);
    torch::manual_seed(3);
    torch::nn::Linear layer(2000, 2000);
    const Unit unit = engine.add_unit("layer", layer);
    engine.initialize();
    for (int i = 0; i < steps; ++i) {
      engine.backward(engine.forward(unit, torch::ones({1, 2000}, torch::kBFloat16))
                          .to(torch::kFloat32)
                          .square()
                          .mean());
      engine.step();
    }
    engine.finish();
    EXPECT_EQ(engine.steps(), 3);
    return engine.parameter("layer.weight");
  };
  const Tensor last = weight_after(3, {});
  EngineOptions options;
  options.resume = true;
  EXPECT_TRUE(torch::equal(weight_after(0, options), last));
}

TEST(OwnLoopCheckpoint, ASwapDirectoryIsGoneOnFromAfterAnyEnd) {
  const TempDir swap;
  const config::TrainConfig config = config_of(one_micro_batch("nvme"), swap.path());
  std::vector<double> losses;
  {
    Trained trained(config, Model());
    trained.engine.initialize();
    losses_of(trained, 0, 6);
  }
  {
    Trained refused(config, Model());
    EXPECT_THAT(message_of([&] { refused.engine.initialize(); }),
                HasSubstr("holds a run that was committed at step 6"));
  }
  {
    EngineOptions options;
    options.resume = true;
    Trained resumed(config, Model(), options);
    resumed.engine.initialize();
    EXPECT_EQ(resumed.engine.steps(), 6);
    losses = losses_of(resumed, 6, 10);
  }
  LoopSetup in_memory = one_micro_batch();
  Trained straight(config_of(in_memory), Model());
  straight.engine.initialize();
  losses_of(straight, 0, 6);
  EXPECT_EQ(losses_of(straight, 6, 10), losses);
}

// A checkpoint elsewhere, and a checkpoint that was loaded, are not what a run resumes from: its
// end commits the state that it has.
TEST(OwnLoopCheckpoint, TheEndCommitsWhateverWasSavedAndLoaded) {
  struct Case {
    const char* name;
    const char* keys;
    int load_at;  // the step whose checkpoint is loaded at the end; -1: none
    bool save;    // elsewhere, at the end
  };
  for (const Case& each :
       {Case{"saved", "\"commit_every\": 5, ", -1, true}, Case{"loaded", "", 2, false},
        Case{"loaded and saved", "", 2, true}, Case{"loaded step 0", "", 0, false},
        Case{"without durability", "\"durability\": \"none\", ", 2, true}}) {
    SCOPED_TRACE(each.name);
    const TempDir swap;
    const TempDir elsewhere;
    LoopSetup setup = one_micro_batch("nvme");
    setup.sluice_keys = each.keys;
    const config::TrainConfig config = config_of(setup, swap.path());
    std::string weight;
    std::int64_t step = 0;
    {
      Trained trained(config, Model());
      trained.engine.initialize();
      for (int i = 0; i < 4; ++i) {
        if (i == each.load_at) trained.engine.save_checkpoint(elsewhere.path());
        trained.train(i);
      }
      if (each.load_at >= 0) {
        EXPECT_EQ(trained.engine.load_checkpoint(elsewhere.path()), each.load_at);
      }
      const TempDir other;
      if (each.save) trained.engine.save_checkpoint(other.path());
      weight = bytes_of(trained.engine.parameter("h.0.up.weight"));
      step = trained.engine.steps();
      trained.engine.finish();
    }
    torch::manual_seed(1234);
    Trained resumed(config, Model(), {.resume = true});
    resumed.engine.initialize();
    EXPECT_EQ(resumed.engine.steps(), step);
    EXPECT_EQ(bytes_of(resumed.engine.parameter("h.0.up.weight")), weight);
  }
}

TEST(OwnLoopCheckpoint, OneThatCannotBeLoadedLeavesTheStepAsItIs) {
  LoopSetup setup;
  setup.accumulation = 2;
  const config::TrainConfig config = config_of(setup);
  StepResult whole;
  {
    Trained expected(config, Model());
    expected.engine.initialize();
    expected.train(0);
    whole = expected.train(1);
  }
  Trained trained(config, Model());
  trained.engine.initialize();
  trained.train(0);
  EXPECT_THROW(trained.engine.load_checkpoint("/no/such/checkpoint"), IoError);
  const StepResult result = trained.train(1);
  EXPECT_TRUE(result.updated);
  EXPECT_EQ(result.gradient_norm, whole.gradient_norm);
  EXPECT_EQ(result.loss, whole.loss);
}

TEST(OwnLoopCheckpoint, ConfiguredCheckpointsAreWritten) {
  const TempDir folder;
  LoopSetup setup = one_micro_batch();
  setup.sluice_keys =
      "\"checkpoint_dir\": \"" + folder.path() + "\", \"checkpoint_every\": 2, \"keep\": 1, ";
  {
    Trained trained(config_of(setup), Model());
    trained.engine.initialize();
    losses_of(trained, 0, 5);
    EXPECT_TRUE(std::filesystem::exists(folder.file("step-00000004")));
    EXPECT_FALSE(std::filesystem::exists(folder.file("step-00000002")));
    trained.engine.save_checkpoint(folder.path());  // held by this engine
  }
  EXPECT_TRUE(std::filesystem::exists(folder.file("step-00000005")));
  EngineOptions options;
  options.resume = true;
  Trained resumed(config_of(setup), Model(), options);
  resumed.engine.initialize();
  EXPECT_EQ(resumed.engine.steps(), 5);
}

TEST(OwnLoopCheckpoint, OfOtherUnitsIsRefused) {
  const TempDir folder;
  {
    Trained trained(config_of(one_micro_batch()), Model());
    trained.engine.initialize();
    trained.train(0);
    trained.engine.save_checkpoint(folder.path());
  }
  Trained other(config_of(one_micro_batch()), Model(0, 2));
  other.engine.initialize();
  EXPECT_THAT(message_of([&] { other.engine.load_checkpoint(folder.path()); }),
              HasSubstr("holds another model: parameter "));
  EXPECT_TRUE(other.train(0).updated);
}

// Trained parameters are exported under their names; frozen ones come from the modules.
TEST(OwnLoopCheckpoint, IsExportedWithoutWhatIsFrozen) {
  const TempDir folder;
  LoopSetup setup = one_micro_batch();
  setup.bf16 = false;
  Model model;
  for (auto& parameter : model.blocks[1]->parameters()) parameter.set_requires_grad(false);
  Tensor expected;
  {
    Trained trained(config_of(setup), std::move(model));
    trained.engine.initialize();
    losses_of(trained, 0, 3);
    trained.engine.save_checkpoint(folder.path());
    expected = trained.engine.parameter("h.0.up.weight").clone();
  }
  const TempDir out;
  models::export_weights(folder.path(), out.file("w.safetensors"), DType::fp32, {});
  const models::SafetensorsReader file(out.file("w.safetensors"));
  EXPECT_EQ(file.tensors().count("h.1.up.weight"), 0U);
  EXPECT_EQ(file.tensors().count("embed.tokens.weight"), 1U);
  std::vector<float> values(static_cast<std::size_t>(expected.numel()));
  file.read_fp32(file.tensors().at("h.0.up.weight"), 0, values);
  EXPECT_EQ(std::memcmp(values.data(), expected.data_ptr(), expected.nbytes()), 0);
}

}  // namespace
}  // namespace sluice::test
