// The loop of `sluice train` and a loop of the user's own share the parts of a step and its end. So
// the same steps of the same model have the same bits in both.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine_support.hpp"
#include "file_text.hpp"
#include "run/initial_weights.hpp"
#include "saved/checkpoint.hpp"
#include "saved/checkpoint_directory.hpp"
#include "saved/saved_state.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/gpt2.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/train/engine.hpp"
#include "step/step_runner.hpp"
#include "temp_dir.hpp"
#include "train/step/small_run.hpp"

namespace sluice::train {
namespace {

constexpr std::uint64_t kSeed = 5;
constexpr int kSteps = 6;

struct Case {
  const char* name = "";
  bool bf16 = true;
  double clipping = 1;
  double learning_rate = 1e-2;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}

struct Course {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<bool> updated;
  std::string states;  // bytes of the checkpoint after the last step
};

class BothLoops : public testing::TestWithParam<Case> {
 protected:
  BothLoops() {
    std::ofstream text(dir_.file("data.txt"));
    for (int i = 0; i < 4000; ++i) text << static_cast<char>('a' + i * i % 23);
  }

  static config::TrainConfig config_of(const Case& each) {
    config::TrainConfig config = test::small_config();
    config.micro_batch_size = config.train_batch_size = 2;
    config.bf16 = each.bf16;
    config.gradient_clipping = each.clipping;
    config.optimizer.lr = each.learning_rate;
    // The head's backward computes again: it adds the projection's gradient while it does so.
    config.sluice.activations = config::Activations::recompute;
    config.sluice.threads.compute = 1;
    return config;
  }
  // Untied: in a tied model the two loops add up the embedding's gradient in another order.
  static config::ModelConfig model() {
    config::ModelConfig model = test::small_model();
    model.tie_word_embeddings = false;
    return model;
  }
  static plan::Plan plan_of(const config::TrainConfig& config) {
    return plan::make_plan(config, model(), plan::Placement::configured,
                           plan::probe_machine(config));
  }
  models::Dataset data() const {
    return models::Dataset(dir_.file("data.txt"), static_cast<std::uint64_t>(model().n_positions),
                           256);
  }
  static std::string states_in(const std::string& checkpoints) {
    return sluice::test::file_text(models::newest_checkpoint(checkpoints) + "/states.0.swap");
  }

  Course run_program(const Case& each) {
    const plan::Plan plan = plan_of(config_of(each));
    at::set_num_threads(plan.schedule.threads.compute);  // as Run and Engine do
    RunResources resources = test::make_resources(plan, {SwapMode::create});
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    Progress progress;
    Course course;
    for (int i = 0; i < kSteps; ++i) {
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward = runner.forward_backward(
          data(), progress.step + 1, progress.loss_scaler.scale(), update, {});
      course.losses.push_back(backward.loss);
      course.norms.push_back(backward.gradient_norm);
      course.updated.push_back(runner.end_step(backward, update, progress).updated);
    }
    runner.finish_updates();
    offload::HeldDirectories held;
    hold_checkpoint_directory(dir_.file("program"), held);
    CheckpointWriter writer(resources);
    write_checkpoint(writer, progress, {kSeed, {}}, dir_.file("program"));
    course.states = states_in(dir_.file("program"));
    return course;
  }

  Course run_engine(const Case& each) {
    const config::TrainConfig config = config_of(each);
    const plan::Plan plan = plan_of(config);  // the model's layouts; the engine plans for itself
    const InitialWeights initial(plan, kSeed, std::nullopt);
    const auto modules =
        models::make_gpt2_modules(model(), each.bf16 ? torch::kBFloat16 : torch::kFloat32);
    Engine engine(config);
    std::vector<Unit> units;
    for (std::size_t u = 0; u < modules.size(); ++u)
      units.push_back(add_unit(engine, modules[u], plan, u, initial));
    engine.initialize();
    const models::Dataset text = data();
    Course course;
    for (int i = 0; i < kSteps; ++i) {
      const MicroBatches batches(plan, text, kSeed, i + 1, torch::kCPU);
      const Batch batch = batches.at(0);
      Tensors x = {batch.inputs};
      for (std::size_t u = 0; u + 1 < units.size(); ++u) x = engine.forward(units[u], x);
      x.push_back(batch.targets);
      engine.backward(engine.forward(units.back(), x).front());
      const StepResult result = engine.step();
      course.losses.push_back(result.loss);
      course.norms.push_back(result.gradient_norm);
      course.updated.push_back(result.updated);
    }
    engine.finish();
    engine.save_checkpoint(dir_.file("engine"));
    course.states = states_in(dir_.file("engine"));
    return course;
  }

 private:
  // A unit of GPT-2 as a user's module: its parameters have the program's initial values, in fp32.
  static Unit add_unit(Engine& engine, const std::shared_ptr<models::UnitModule>& module,
                       const plan::Plan& plan, std::size_t unit, const InitialWeights& initial) {
    const torch::NoGradGuard no_grad;
    const zero::UnitLayout& layout = plan.layouts[unit];
    for (std::size_t p = 0; p < layout.params.size(); ++p) {
      torch::Tensor values = torch::empty(layout.params[p].shape);
      initial.fill_of(unit)(layout.params[p].offset_count,
                            {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
      module->params_in_order()[p].set_data(values);
    }
    const bool is_head = unit + 1 == plan.layouts.size();
    return engine.add_unit(layout.name, module, [module, is_head](const Tensors& x) {
      return Tensors{is_head ? module->loss(x[0], x[1])
                             : module->forward(x[0], models::DropoutKey{})};
    });
  }

  const sluice::test::TempDir dir_;
};

TEST_P(BothLoops, HaveTheSameBits) {
  const Course program = run_program(GetParam());
  const Course engine = run_engine(GetParam());
  EXPECT_TRUE(sluice::test::same_bits(program.losses, engine.losses))
      << testing::PrintToString(program.losses) << testing::PrintToString(engine.losses);
  EXPECT_TRUE(sluice::test::same_bits(program.norms, engine.norms))
      << testing::PrintToString(program.norms) << testing::PrintToString(engine.norms);
  EXPECT_EQ(program.updated, engine.updated);
  EXPECT_FALSE(program.states.empty());
  EXPECT_TRUE(program.states == engine.states) << "the optimizer states differ";
  const bool overflows = GetParam().learning_rate > 1;
  EXPECT_EQ(program.updated.back(), !overflows);
}

INSTANTIATE_TEST_SUITE_P(Steps, BothLoops,
                         testing::Values(Case{.name = "bf16"}, Case{.name = "fp32", .bf16 = false},
                                         Case{.name = "clipped_hard", .clipping = 1e-3},
                                         Case{.name = "skipped_after_an_overflow",
                                              .learning_rate = 1e30}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sluice::train
