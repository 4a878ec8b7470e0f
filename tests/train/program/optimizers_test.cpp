// Runs with every optimizer, with and without parameter groups: offloaded equals resident bit for
// bit, a resumed run continues as if nothing had happened, and the drive moves the planned bytes.

#include <gtest/gtest.h>

#include "deep_run.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

constexpr int kSteps = 8;

struct OptimizerRun {
  const char* name;
  const char* optimizer;
  const char* groups;         // keys of the section "sluice"
  std::uint64_t state_bytes;  // of a parameter, with fp32 moments
  bool takes_all_formats = false;
};

constexpr const char* kGroups =
    R"("groups": [{"match": "*.wte.weight", "lr": 3e-4, "weight_decay": 0.02},
                  {"match": ["transformer.h.0.*", "*.ln_f.*"], "lr": 2e-3}],
       "no_decay": "biases_and_norms", )";
constexpr const char* kAdamW = R"("type": "AdamW", "params": {"weight_decay": 0.1})";
constexpr const char* kSgd =
    R"("type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})";

constexpr OptimizerRun kRuns[] = {
    {"AdamW", kAdamW, "", 16, true},
    {"AMSGrad", R"("type": "AdamW", "params": {"weight_decay": 0.1, "amsgrad": true})", "", 20,
     true},
    {"Adagrad", R"("type": "Adagrad", "params": {"initial_accumulator_value": 0.1})", "", 12},
    {"Lion", R"("type": "Lion", "params": {"lr": 2e-4, "weight_decay": 0.1})", "", 12},
    {"Momentum", kSgd, "", 12, true},
    {"SGD", R"("type": "SGD", "params": {"lr": 0.05})", "", 8},
    {"AdamWInGroups", kAdamW, kGroups, 16},
    {"MomentumInGroups", kSgd, kGroups, 12},
};

class Optimizers : public testing::TestWithParam<OptimizerRun> {
 protected:
  TrainSetup setup_of(const OptimizerRun& each) const {
    TrainSetup setup;
    setup.optimizer = each.optimizer;
    setup.sluice_keys = each.groups;
    return setup;
  }
  TrainFolder folder_;
};

TEST_P(Optimizers, OffloadedEqualsResidentAndTheDriveMovesThePlannedBytes) {
  std::vector<std::string> formats = {""};
  // Formats change the code of parts, not that of rules: one rule with each number of moments.
  if (GetParam().takes_all_formats || test::usual_or_deep(0, 1) == 1)
    formats.insert(formats.end(),
                   {R"("master": "fp32", "moments": "bf16", )", R"("cache_bytes": "50%", )"});
  for (const std::string& format : formats) {
    TrainSetup setup = setup_of(GetParam());
    setup.sluice_keys += format;
    const Outcome resident = outcome_of(folder_, setup, kSteps, kResident);
    setup.optimizer_device = setup.param_device = "cpu";
    expect_same(outcome_of(folder_, setup, kSteps), resident);
    setup.optimizer_device = setup.param_device = "nvme";
    expect_same(outcome_of(folder_, setup, kSteps), resident);
    const Json::Value planned = plan_of(folder_);
    for (const char* link : {"nvme_read", "nvme_write"}) {
      const std::string bytes = planned["bytes_per_step"][link].asString();
      for (const std::string& of_step : column(folder_, "report", link))
        EXPECT_EQ(of_step, bytes) << link;
    }
    EXPECT_TRUE(planned.isMember("optimizer"));
    constexpr std::uint64_t kBesideMoments = 2 + 2 + 4;  // weight, gradient, master
    const std::uint64_t moments = GetParam().state_bytes - kBesideMoments;
    const bool halved = format.find("\"moments\": \"bf16\"") != std::string::npos;
    EXPECT_EQ(
        planned["state_bytes"].asUInt64(),
        planned["parameters"].asUInt64() * (kBesideMoments + (halved ? moments / 2 : moments)));
  }
}

TEST_P(Optimizers, AResumedRunContinuesWithTheBitsOfAnUninterruptedOne) {
  for (const char* device : {"nvme", "cpu"}) {
    SCOPED_TRACE(device);
    TrainSetup setup = setup_of(GetParam());
    setup.optimizer_device = setup.param_device = device;
    const Outcome whole = outcome_of(folder_, setup, kSteps);
    folder_.clear_swap();
    setup.sluice_keys += "\"checkpoint_dir\": \"" + folder_.checkpoints() + "\", ";
    folder_.set(setup);
    ASSERT_EQ(folder_.train("report", 3).exit_code, 0);
    const ProgramResult resumed = folder_.train("report", kSteps, {"--resume"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(resumed.err.find("resumed with another"), std::string::npos) << resumed.err;
    EXPECT_EQ(column(folder_, "report", "loss"), whole.losses);
    EXPECT_EQ(column(folder_, "report", "grad_norm"), whole.norms);
    const bool on_drive = std::string(device) == "nvme";
    EXPECT_TRUE(exported(folder_, on_drive ? folder_.swap() : folder_.checkpoints()) ==
                whole.weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Optimizers, testing::ValuesIn(kRuns),
                         [](const auto& each) { return each.param.name; });

TEST(ResumedOptimizer, IsTheOneThatTheStatesAreOfOrTheWeightsAreTaken) {
  TrainFolder folder;
  TrainSetup setup;
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 2).exit_code, 0);
  setup.optimizer = R"("type": "Lion", "params": {"lr": 1e-4})";
  folder.set(setup);
  expect_refused(folder.train("report", 4, {"--resume"}), 4,
                 {"holds the states of Adam, the configuration asks for Lion", "sluice export",
                  "--init FILE (in Python load_module_only=True)"});
  setup.optimizer = R"("type": "AdamW", "params": {"amsgrad": true})";
  folder.set(setup);
  expect_refused(folder.train("report", 4, {"--resume"}), 4,
                 {"holds the states of Adam, the configuration asks for Adam with amsgrad"});
  // The message's way out.
  exported(folder, folder.swap());
  folder.clear_swap();
  setup.optimizer = R"("type": "Lion", "params": {"lr": 1e-4})";
  folder.set(setup);
  const ProgramResult begun =
      folder.train("report", 2, {"--init", folder.path("weights.safetensors")});
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  setup.optimizer = kSgd;
  folder.set(setup);
  expect_refused(folder.train("report", 4, {"--resume"}), 4,
                 {"holds the states of Lion, the configuration asks for SGD with momentum"});
}

TEST(ResumedOptimizer, IsNamedInTheManifestAndOtherGroupsAreSaid) {
  TrainFolder folder;
  TrainSetup setup;
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 3).exit_code, 0);
  const std::string manifest = file_text(folder.swap() + "/manifest.json");
  EXPECT_NE(manifest.find(R"(\"optimizer\":\"Adam\")"), std::string::npos) << manifest;
  setup.sluice_keys = kGroups;
  folder.set(setup);
  const ProgramResult resumed = folder.train("report", 6, {"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed with other parameter groups: was one of all parameters; is"),
            std::string::npos)
      << resumed.err;
}

TEST(Groups, APatternWithoutAParameterIsAnErrorWithNearNames) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys = R"("groups": [{"match": "ln_1", "weight_decay": 0}], )";
  folder.set(setup);
  expect_refused(folder.train("report", 2), 2,
                 {"sluice.groups.0.match: \"ln_1\" matches no parameter", "transformer.h.0.ln_1"});
  setup.sluice_keys = R"("groups": [{"match": "*.bias", "weight_decay": 0},
                                    {"match": "*.ln_1.bias", "lr": 1e-4}], )";
  folder.set(setup);
  expect_refused(folder.train("report", 2), 2,
                 {"sluice.groups.1.match: \"*.ln_1.bias\" matches only parameters that an earlier",
                  "put the narrower group first"});
}

// Elements whose gradient has always been 0 become 0 / 0: rows of tokens that the data does not
// have.
TEST(Groups, AnUpdateThatIsNotFiniteIsBlamedOnTheGroupsValues) {
  TrainFolder folder;
  write_file(folder.model(),
             R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 32,
                 "vocab_size": 256, "tie_word_embeddings": false})");
  TrainSetup setup;
  setup.sluice_keys = R"("groups": [{"match": "*.wte.weight", "eps": 0}], )";
  folder.set(setup);
  expect_refused(folder.train("report", 2), 1,
                 {"step 1: the update of transformer.wte.weight (element ",
                  "gave a non-finite value from finite gradients", "\"eps\": 0"});
  folder.clear_swap();
  setup.bf16 = false;  // some CPUs' bf16 sums have gradients of norms that are exactly 0
  setup.optimizer = R"("type": "Adagrad", "params": {"eps": 0})";
  setup.sluice_keys = R"("groups": [{"match": "transformer.w*", "eps": 1e-8}], )";
  folder.set(setup);
  EXPECT_EQ(folder.train("report", 2).exit_code, 0);
  folder.clear_swap();
  setup.sluice_keys.clear();
  folder.set(setup);
  expect_refused(folder.train("report", 2), 1,
                 {"the update of transformer.wte.weight (element ", "\"eps\": 0"});
}

// A group's rate of 0 keeps its parameters as they are; without decay they do not shrink.
TEST(Groups, HaveTheirOwnRate) {
  TrainFolder folder;
  TrainSetup setup;
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 3).exit_code, 0);
  const std::string trained = exported(folder, folder.swap());
  folder.clear_swap();
  setup.sluice_keys = R"("groups": [{"match": "*", "lr": 0}], )";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 1).exit_code, 0);
  const std::string first = exported(folder, folder.swap());
  const ProgramResult resumed = folder.train("report", 3, {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(exported(folder, folder.swap()) == first);
  EXPECT_FALSE(first == trained);
}

TEST(Groups, AreInThePlanWithTheirParameters) {
  TrainFolder folder;
  TrainSetup setup;
  setup.sluice_keys = kGroups;
  folder.set(setup);
  const ProgramResult plan =
      run_sluice({"plan", "--config", folder.config(), "--model", folder.model()});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  // 256 x 64 of the embedding.
  for (const char* text :
       {"parameter group", "*.wte.weight", "16,384", "0.0003", "0.02",
        "transformer.h.0.*, *.ln_f.*, without biases and norms",
        "transformer.h.0.*, *.ln_f.*, biases and norms", "the others, biases and norms"})
    EXPECT_NE(plan.out.find(text), std::string::npos) << text << " in\n" << plan.out;
}

}  // namespace
}  // namespace sluice::test
