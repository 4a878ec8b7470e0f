// Trains its own model in its own loop, offloaded according to a DeepSpeed JSON file. The model
// predicts the next letter of a text from the 16 letters before: a residual network whose output
// projection is its embedding. own_loop DS_JSON [STEPS [FILE]]; FILE gets the trained embedding.

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "sluice/train/engine.hpp"

namespace {

using torch::Tensor;

constexpr std::int64_t kLetters = 128;
constexpr std::int64_t kContext = 16;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kBatch = 8;

// (B, kContext) letters -> (B, kWidth)
struct EmbeddingImpl : torch::nn::Module {
  EmbeddingImpl()
      : letters(register_module("letters", torch::nn::Embedding(kLetters, kWidth))),
        mix(register_module("mix", torch::nn::Linear(kContext * kWidth, kWidth))) {}
  Tensor forward(const Tensor& x) { return mix->forward(letters->forward(x).flatten(1)); }
  torch::nn::Embedding letters;
  torch::nn::Linear mix;
};
TORCH_MODULE(Embedding);

// (B, kWidth) -> (B, kWidth)
struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}
  Tensor forward(const Tensor& x) { return down->forward(torch::gelu(up->forward(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Layer);

// (B, kWidth) -> (B, kLetters), with weights of another unit
struct OutputImpl : torch::nn::Module {
  explicit OutputImpl(const Tensor& tied)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        weight(register_parameter("weight", tied)) {}
  Tensor forward(const Tensor& x) { return torch::linear(norm->forward(x), weight); }
  torch::nn::LayerNorm norm;
  Tensor weight;
};
TORCH_MODULE(Output);

struct Batch {
  Tensor inputs;   // (B, kContext)
  Tensor targets;  // (B)
};
Batch batch(const std::string& text, std::int64_t index) {
  Batch made{torch::empty({kBatch, kContext}, torch::kInt64),
             torch::empty({kBatch}, torch::kInt64)};
  for (std::int64_t row = 0; row < kBatch; ++row) {
    const auto begin =
        static_cast<std::size_t>((index * kBatch + row) * 37) % (text.size() - kContext);
    for (std::int64_t i = 0; i < kContext; ++i)
      made.inputs[row][i] = text[begin + static_cast<std::size_t>(i)];
    made.targets[row] = text[begin + kContext];
  }
  return made;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr, "usage: own_loop DS_JSON [STEPS [FILE]]\n");
    return 2;
  }
  const int steps = argc > 2 ? std::atoi(argv[2]) : 100;
  torch::manual_seed(1);
  const std::string text =
      "a sluice is a gate that holds water back and lets as much of it through as is needed below, "
      "when it is needed; what waits above it waits where there is room. ";

  sluice::train::Engine engine(argv[1]);
  Embedding embedding;
  const auto embed = engine.add_unit("embedding", embedding);
  const auto first = engine.add_unit("layers.0", Layer());
  const auto second = engine.add_unit("layers.1", Layer());
  const auto output = engine.add_unit("output", Output(embedding->letters->weight));
  engine.initialize();
  std::printf("%s\n", engine.plan_table().c_str());

  const auto loss_of = [&](const Batch& on) {
    Tensor x = engine.forward(embed, on.inputs.to(engine.device()));
    x = x + engine.forward(first, x);
    x = x + engine.forward(second, x);
    return torch::nn::functional::cross_entropy(engine.forward(output, x).to(torch::kFloat32),
                                                on.targets.to(engine.device()));
  };
  std::int64_t index = 0;
  while (engine.steps() < steps) {
    engine.backward(loss_of(batch(text, index++)));
    const sluice::train::StepResult result = engine.step();
    if (result.updated && result.step % 20 == 0)
      std::printf("step %3d  loss %.4f\n", static_cast<int>(result.step), result.loss);
  }
  const torch::NoGradGuard no_grad;
  std::printf("evaluated: %.4f\n", loss_of(batch(text, 5)).item<double>());
  const sluice::train::EngineCounters counters = engine.counters();
  std::printf("moved to the device: %.1f MiB, back: %.1f MiB\n",
              static_cast<double>(counters.h2d_bytes) / (1 << 20),
              static_cast<double>(counters.d2h_bytes) / (1 << 20));
  engine.restore_modules();  // they are ordinary modules again, with their trained weights
  if (argc > 3) torch::save(embedding, argv[3]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "own_loop: %s\n", error.what());
  return 1;
}
