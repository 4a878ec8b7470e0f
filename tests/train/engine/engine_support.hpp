#pragma once
// A small transformer of LibTorch's own modules, trained through Engine or by a plain LibTorch
// loop. Thread-compatible: callers synchronise.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "message_of.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/train/engine.hpp"
#include "temp_dir.hpp"

namespace sluice::test {

using torch::Tensor;
using train::Engine;
using train::EngineOptions;
using train::StepResult;
using train::Tensors;
using train::Unit;

inline constexpr std::int64_t kVocabulary = 40;
inline constexpr std::int64_t kWidth = 24;
inline constexpr std::int64_t kLength = 12;

struct EmbedImpl : torch::nn::Module {
  EmbedImpl()
      : tokens(register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth))),
        positions(register_parameter("positions", torch::randn({kLength, kWidth}) * 0.1)) {}
  Tensor forward(const Tensor& x) { return tokens->forward(x) + positions; }
  torch::nn::Embedding tokens;
  Tensor positions;
};
TORCH_MODULE(Embed);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}
  Tensor forward(const Tensor& x) {
    return drop->forward(down->forward(torch::gelu(up->forward(norm->forward(x)))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(Block);

// Projects by the embedding's weights.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const Tensor& tied)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        weight(register_parameter("weight", tied, tied.requires_grad())) {}
  Tensor forward(const Tensor& x) { return torch::linear(norm->forward(x), weight); }
  torch::nn::LayerNorm norm;
  Tensor weight;
};
TORCH_MODULE(Head);

struct Model {
  explicit Model(double dropout = 0, int blocks_count = 3) {
    torch::manual_seed(7);
    embed = Embed();
    for (int i = 0; i < blocks_count; ++i) blocks.emplace_back(dropout);
    head = Head(embed->tokens->weight);
  }
  Embed embed{nullptr};
  std::vector<Block> blocks;
  Head head{nullptr};
};

// Tokens and targets, the same on every machine.
struct Batch {
  Tensor inputs;
  Tensor targets;
};
inline Batch batch(int index) {
  Tensor inputs = torch::empty({2, kLength}, torch::kInt64);
  for (std::int64_t i = 0; i < inputs.numel(); ++i)
    inputs.data_ptr<std::int64_t>()[i] = (i * i + std::int64_t{3} * index * (i + 1)) % kVocabulary;
  return {inputs, (inputs * 5 + 1) % kVocabulary};
}

inline Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.view({-1, kVocabulary}).to(torch::kFloat32),
                                              targets.view({-1}));
}

struct LoopSetup {
  std::string optimizer_device = "cpu";
  std::string param_device = "cpu";
  double ratio = 1;  // of offload_optimizer
  bool bf16 = true;
  int accumulation = 2;
  double clipping = 1.0;
  double weight_decay = 0.1;
  double learning_rate = 1e-2;
  double epsilon = 1e-8;
  std::string device_bytes = "64MiB";
  std::string host_bytes = "64MiB";
  std::string sluice_keys = {};  // each ending with a comma
  std::string more_keys = {};    // of the whole file, each ending with a comma
};

// Steps of one micro-batch in fp32.
inline LoopSetup fp32_setup(const std::string& activations) {
  LoopSetup setup;
  setup.bf16 = false;
  setup.accumulation = 1;
  setup.sluice_keys = "\"activations\": \"" + activations + "\", ";
  return setup;
}

inline config::TrainConfig config_of(const LoopSetup& setup, const std::string& swap = "") {
  const auto offload = [&](const std::string& device, double ratio) {
    const std::string path = device == "nvme" ? ", \"nvme_path\": \"" + swap + "\"" : "";
    const std::string share = ratio < 1 ? ", \"ratio\": " + std::to_string(ratio) : "";
    return "{\"device\": \"" + device + "\"" + path + share + "}";
  };
  std::ostringstream text;
  text << "{" << setup.more_keys << "\"train_micro_batch_size_per_gpu\": 2"
       << ", \"gradient_accumulation_steps\": " << setup.accumulation
       << ", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": " << setup.learning_rate
       << ", \"eps\": " << setup.epsilon << ", \"weight_decay\": " << setup.weight_decay << "}}"
       << ", \"gradient_clipping\": " << setup.clipping
       << ", \"bf16\": {\"enabled\": " << (setup.bf16 ? "true" : "false") << "}"
       << ", \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": "
       << offload(setup.optimizer_device, setup.ratio)
       << ", \"offload_param\": " << offload(setup.param_device, 1) << "}, \"sluice\": {"
       << setup.sluice_keys << "\"device_bytes\": \"" << setup.device_bytes
       << "\", \"host_bytes\": \"" << setup.host_bytes << "\", \"threads\": {\"compute\": 1}}}";
  return config::parse_train_config(text.str(), "ds.json");
}

// A Model in an Engine; initialize() is the caller's.
struct Trained {
  Trained(const config::TrainConfig& config, Model the_model, const EngineOptions& options = {})
      : model(std::move(the_model)), engine(config, options) {
    units.push_back(engine.add_unit("embed", model.embed));
    for (std::size_t i = 0; i < model.blocks.size(); ++i)
      units.push_back(engine.add_unit("h." + std::to_string(i), model.blocks[i]));
    units.push_back(engine.add_unit("head", model.head));
  }
  Tensor loss(const Batch& on) {
    Tensor x = engine.forward(units.front(), on.inputs);
    for (std::size_t i = 1; i + 1 < units.size(); ++i) x = x + engine.forward(units[i], x);
    return cross_entropy(engine.forward(units.back(), x), on.targets);
  }
  // One micro-batch.
  StepResult train(int index) {
    engine.backward(loss(batch(index)));
    return engine.step();
  }
  Model model;
  Engine engine;
  std::vector<Unit> units;
};

inline const std::vector<std::string>& parameter_names() {
  static const std::vector<std::string> names = {
      "embed.positions", "embed.tokens.weight", "h.0.up.weight",  "h.1.norm.weight",
      "h.1.down.bias",   "h.2.down.weight",     "head.norm.bias",
  };
  return names;
}

struct Course {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::string> weights;  // bytes
};

inline std::string bytes_of(const Tensor& tensor) {
  const Tensor whole = tensor.contiguous();
  return {static_cast<const char*>(whole.data_ptr()), whole.nbytes()};
}

inline Course course_of(Trained& trained, int steps, int accumulation) {
  Course course;
  for (int i = 0; i < steps * accumulation; ++i) {
    const StepResult result = trained.train(i);
    if ((i + 1) % accumulation != 0) continue;
    course.losses.push_back(result.loss);
    course.norms.push_back(result.gradient_norm);
  }
  for (const std::string& name : parameter_names())
    course.weights.push_back(bytes_of(trained.engine.parameter(name)));
  return course;
}

// A whole run in a swap directory of its own.
inline Course run(const LoopSetup& setup, double dropout = 0, int steps = 20,
                  bool resident = false) {
  const TempDir swap;
  EngineOptions options;
  options.resident = resident;
  Trained trained(config_of(setup, swap.path()), Model(dropout), options);
  trained.engine.initialize();
  torch::manual_seed(99);
  return course_of(trained, steps, setup.accumulation);
}

// A norm that is not a number equals itself.
inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

inline void expect_same(const Course& a, const Course& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_TRUE(same_bits(a.norms, b.norms))
      << testing::PrintToString(a.norms) << " and " << testing::PrintToString(b.norms);
  EXPECT_TRUE(a.weights == b.weights) << "the weights differ";
}

}  // namespace sluice::test
