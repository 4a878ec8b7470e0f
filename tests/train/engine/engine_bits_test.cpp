// A loop of the user's own: offloaded equals resident, bit for bit; and a plain LibTorch loop, up
// to rounding.

#include "engine_support.hpp"

namespace sluice::test {
namespace {

constexpr double kDropout = 0.1;

TEST(OwnLoopBits, EveryPlacementEqualsResident) {
  const Course resident = run({}, kDropout, 20, true);
  EXPECT_LT(resident.losses.back(), resident.losses.front());
  const std::pair<const char*, const char*> placements[] = {
      {"none", "none"}, {"cpu", "none"}, {"cpu", "cpu"}, {"nvme", "cpu"}, {"nvme", "nvme"}};
  for (const auto& [optimizer, param] : placements) {
    SCOPED_TRACE(std::string("optimizer ") + optimizer + ", param " + param);
    expect_same(run({.optimizer_device = optimizer, .param_device = param}, kDropout), resident);
  }
}

// Without a device budget, weights and gradients are used in host memory, where they are at home.
TEST(OwnLoopBits, HomesOfTheHostChangeNothing) {
  const Course resident = run({}, kDropout, 20, true);
  for (const std::string optimizer : {"cpu", "nvme"}) {
    for (const std::string keys :
         {"", "\"overlap\": false, ", "\"activations\": \"recompute\", "}) {
      SCOPED_TRACE(optimizer + keys);
      expect_same(run({.optimizer_device = optimizer, .device_bytes = "auto", .sluice_keys = keys},
                      kDropout),
                  resident);
    }
  }
}

TEST(OwnLoopBits, OverlapAndActivationsChangeNothing) {
  const Course resident = run({}, kDropout, 20, true);
  for (const std::string keys :
       {"\"overlap\": false, ", "\"activations\": \"recompute\", ", "\"activations\": \"keep\", ",
        "\"activations\": \"recompute\", \"overlap\": false, "}) {
    for (const std::string optimizer : {"cpu", "nvme"}) {
      SCOPED_TRACE(keys + optimizer);
      expect_same(run({.optimizer_device = optimizer, .sluice_keys = keys}, kDropout), resident);
    }
  }
}

TEST(OwnLoopBits, WithoutClippingAndInFp32TheSame) {
  LoopSetup setup{.bf16 = false, .accumulation = 1, .clipping = 0};
  const Course resident = run(setup, kDropout, 20, true);
  expect_same(run(setup, kDropout), resident);
  setup.optimizer_device = setup.param_device = "nvme";
  setup.sluice_keys = "\"activations\": \"recompute\", ";
  expect_same(run(setup, kDropout), resident);
}

// Everything of the device budget that is not planned: weights come and go.
TEST(OwnLoopBits, WithPlannedActivationsWeightsStayAndNothingChanges) {
  const Course resident = run({}, kDropout, 8, true);
  Trained trained(config_of({}), Model(kDropout), {.activation_bytes = 8U << 20U});
  trained.engine.initialize();
  torch::manual_seed(99);
  expect_same(course_of(trained, 8, 2), resident);
}

constexpr const char* kGroups =
    R"("groups": [{"match": "embed.*", "lr": 2e-3}], "no_decay": "biases_and_norms", )";

// This model by LibTorch alone: its modules, its clipping, its AdamW.
struct Plain {
  // `in_groups`: parameter groups as kGroups says.
  explicit Plain(const LoopSetup& setup, bool in_groups = false)
      : model(0), accumulation(setup.accumulation) {
    for (auto& parameter : model.embed->parameters()) parameters.push_back(parameter);
    for (auto& block : model.blocks)
      for (auto& parameter : block->parameters()) parameters.push_back(parameter);
    for (auto& parameter : model.head->norm->parameters()) parameters.push_back(parameter);
    const auto options = torch::optim::AdamWOptions(setup.learning_rate)
                             .weight_decay(setup.weight_decay)
                             .eps(setup.epsilon);
    optimizer = std::make_unique<torch::optim::AdamW>(
        in_groups ? grouped(options) : std::vector<torch::optim::OptimizerParamGroup>{{parameters}},
        options);
  }
  std::vector<torch::optim::OptimizerParamGroup> grouped(
      const torch::optim::AdamWOptions& options) const {
    const std::vector<Tensor> embedding = model.embed->parameters();
    std::vector<Tensor> vectors, matrices;
    for (std::size_t i = embedding.size(); i < parameters.size(); ++i)
      (parameters[i].dim() < 2 ? vectors : matrices).push_back(parameters[i]);
    auto slow = options, without_decay = options;
    slow.lr(2e-3);
    without_decay.weight_decay(0);
    const auto copy = [](const auto& of) {
      return std::make_unique<torch::optim::AdamWOptions>(of);
    };
    return {{embedding, copy(slow)}, {vectors, copy(without_decay)}, {matrices, copy(options)}};
  }
  Tensor loss(const Batch& on) {
    Tensor x = model.embed->forward(on.inputs);
    for (auto& block : model.blocks) x = x + block->forward(x);
    return cross_entropy(model.head->forward(x), on.targets);
  }
  Model model;
  const int accumulation;
  Tensors parameters;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

void expect_like_plain_libtorch(const std::string& groups) {
  // With an epsilon well above the rounding of gradients an update is as exact as they are. Both
  // sides round each operation to 2^-24; gradients of some 0.1 differ by some 1e-7 in the order of
  // their sums, so updates by 1e-7 / epsilon of the learning rate: over 20 steps 20 x 1e-2 x 1e-4.
  const LoopSetup setup{.bf16 = false, .epsilon = 1e-3, .sluice_keys = groups};
  constexpr double kTolerance = 20 * 1e-2 * 1e-4;
  Plain plain(setup, !groups.empty());
  std::vector<double> losses;
  std::vector<double> norms;
  for (int step = 0; step < 20; ++step) {
    plain.optimizer->zero_grad();
    double sum = 0;
    for (int m = 0; m < setup.accumulation; ++m) {
      const Tensor loss = plain.loss(batch(step * setup.accumulation + m));
      sum += loss.item<double>();
      (loss / setup.accumulation).backward();
    }
    losses.push_back(sum / setup.accumulation);
    norms.push_back(torch::nn::utils::clip_grad_norm_(plain.parameters, setup.clipping));
    plain.optimizer->step();
  }
  Trained trained(config_of(setup), Model());
  trained.engine.initialize();
  const Course course = course_of(trained, 20, setup.accumulation);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(course.losses[i], losses[i], 1e-4) << i;
    EXPECT_NEAR(course.norms[i], norms[i], 1e-3 * norms[i]) << i;
  }
  const auto near = [&](const std::string& name, const Tensor& expected) {
    const Tensor got = trained.engine.parameter(name);
    EXPECT_LT((got - expected).abs().max().item<double>(), kTolerance) << name;
  };
  near("embed.tokens.weight", plain.model.embed->tokens->weight);  // tied
  near("embed.positions", plain.model.embed->positions);
  near("h.1.up.weight", plain.model.blocks[1]->up->weight);
  near("h.2.down.bias", plain.model.blocks[2]->down->bias);
  near("head.norm.weight", plain.model.head->norm->weight);
}

TEST(OwnLoopBits, InFp32EqualsAPlainLibTorchLoopUpToRounding) {
  expect_like_plain_libtorch("");
}

TEST(OwnLoopBits, ParameterGroupsAreLibTorchsUpToRounding) {
  expect_like_plain_libtorch(kGroups);
}

TEST(OwnLoopBits, ParameterGroupsGiveTheBitsOfResidentOnes) {
  const Course resident = run({.sluice_keys = kGroups}, kDropout, 20, true);
  EXPECT_NE(resident.losses, run({}, kDropout, 20, true).losses);
  for (const char* device : {"cpu", "nvme"}) {
    SCOPED_TRACE(device);
    expect_same(
        run({.optimizer_device = device, .param_device = device, .sluice_keys = kGroups}, kDropout),
        resident);
  }
}

}  // namespace
}  // namespace sluice::test
