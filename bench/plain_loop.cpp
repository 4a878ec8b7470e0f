// What a user would write without offload: the same GPT-2, all of it in memory, in a plain LibTorch
// loop. bf16 weights and gradients, fp32 master and moments, LibTorch's fused AdamW. Micro-batches
// one after the other through the whole model, activations kept.
//
//   plain_loop MODEL.json MICRO_BATCH ACCUMULATION STEPS
//
// Prints a JSON object: the seconds of every step, the last loss, threads, and resident bytes.

#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/config/model_config.hpp"
#include "sluice/models/gpt2.hpp"
#include "sluice/models/gpt2_layout.hpp"

namespace {

using namespace sluice;
using torch::Tensor;

class PlainGpt2 {
 public:
  explicit PlainGpt2(const config::ModelConfig& model)
      : model_(model),
        units_(models::gpt2_units(model, 1)),
        modules_(models::make_gpt2_modules(model, torch::kBFloat16)) {
    for (const zero::UnitLayout& unit : units_) {
      const auto count = static_cast<std::int64_t>(unit.flat_count);
      master_.push_back(torch::zeros({count}));
      models::fill_initial(model, unit, 1, 0,
                           {master_.back().data_ptr<float>(), static_cast<std::size_t>(count)});
      first_.push_back(torch::zeros({count}));
      second_.push_back(torch::zeros({count}));
      gradient32_.push_back(torch::empty({count}));
      weight_.push_back(master_.back().to(torch::kBFloat16));
      gradient_.push_back(torch::zeros({count}, torch::kBFloat16));
      steps_.push_back(torch::zeros({}));
    }
    for (std::size_t u = 0; u < units_.size(); ++u) {
      modules_[u]->bind(units_[u], weight_[u], lent(u, weight_));
      modules_[u]->bind_gradients(units_[u], gradient_[u], lent(u, gradient_));
    }
  }

  // One step on random tokens; the mean loss.
  double step(std::int64_t micro_batch, std::int64_t accumulation) {
    double loss_sum = 0;
    for (std::int64_t m = 0; m < accumulation; ++m) {
      const Tensor windows =
          torch::randint(model_.vocab_size, {micro_batch, model_.n_positions + 1});
      Tensor x = windows.narrow(1, 0, model_.n_positions).contiguous();
      for (std::size_t u = 0; u + 1 < modules_.size(); ++u)
        x = modules_[u]->forward(x, models::DropoutKey{});
      const Tensor targets = windows.narrow(1, 1, model_.n_positions).contiguous();
      const Tensor loss =
          modules_.back()->loss(x, targets, 1.0 / static_cast<double>(accumulation));
      loss_sum += loss.item<double>();
      loss.backward();
    }
    update();
    return loss_sum / static_cast<double>(accumulation);
  }

 private:
  std::vector<Tensor> lent(std::size_t u, const std::vector<Tensor>& buffers) const {
    std::vector<Tensor> views;
    for (const auto& from : units_[u].borrowed) {
      const zero::ParamLayout& param = units_[from.unit].params[from.param];
      views.push_back(models::view_of(param, buffers[from.unit]));
    }
    return views;
  }

  void update() {
    const torch::NoGradGuard no_grad;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      gradient32_[u].copy_(gradient_[u]);
      gradient_[u].zero_();
    }
    for (Tensor& steps : steps_) steps.add_(1);
    at::_fused_adamw_(master_, gradient32_, first_, second_, {}, steps_, 1e-4, 0.9, 0.999, 0.01,
                      1e-8, false, false);
    for (std::size_t u = 0; u < units_.size(); ++u) weight_[u].copy_(master_[u]);
  }

  const config::ModelConfig model_;
  const std::vector<zero::UnitLayout> units_;
  const std::vector<std::shared_ptr<models::UnitModule>> modules_;
  std::vector<Tensor> master_, first_, second_, gradient32_;  // fp32, flat, by unit
  std::vector<Tensor> weight_, gradient_;                     // bf16
  std::vector<Tensor> steps_;
};

// Of this process, in bytes: anonymous and shared memory, at its peak or now.
long long status_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field, 0) == 0) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const config::ModelConfig model = config::load_model_config(arguments[0]);
  const std::int64_t micro_batch = std::stoll(arguments[1]);
  const std::int64_t accumulation = std::stoll(arguments[2]);
  const int steps = std::stoi(arguments[3]);
  torch::manual_seed(1);
  const long long idle = status_bytes("RssAnon");
  PlainGpt2 gpt2(model);
  std::ostringstream seconds;
  double loss = 0;
  for (int i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    loss = gpt2.step(micro_batch, accumulation);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds << (i == 0 ? "" : ", ") << took.count();
  }
  std::printf(
      "{\"seconds\": [%s], \"loss\": %.17g, \"threads\": %d, \"idle_bytes\": %lld, "
      "\"resident_bytes\": %lld}\n",
      seconds.str().c_str(), loss, at::get_num_threads(), idle, status_bytes("RssAnon"));
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::fprintf(stderr, "usage: plain_loop MODEL.json MICRO_BATCH ACCUMULATION STEPS\n");
    return 2;
  }
  return run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::fprintf(stderr, "plain_loop: %s\n", error.what());
  return 1;
}
