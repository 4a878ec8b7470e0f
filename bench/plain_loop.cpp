// The baseline without offload: GPT-2, entirely in memory, in a plain LibTorch loop. bf16 weights
// and gradients, fp32 master and moments, LibTorch's fused AdamW. Each micro-batch goes through the
// whole model, with saved activations.
//
//   plain_loop MODEL.json MICRO_BATCH ACCUMULATION STEPS [--device cpu|cuda]
//
// Prints a JSON object: the seconds of every step, the last loss, threads, and resident bytes.

#include <dlfcn.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/models/gpt2.hpp"
#include "sluice/models/gpt2_layout.hpp"

namespace {

using namespace sluice;
using torch::Tensor;

class PlainGpt2 {
 public:
  PlainGpt2(const config::ModelConfig& model, torch::Device device)
      : model_(model),
        device_(device),
        units_(models::gpt2_units(model, 1)),
        modules_(models::make_gpt2_modules(model, torch::kBFloat16, device)) {
    const auto fp32 = torch::TensorOptions().device(device_);
    for (const zero::UnitLayout& unit : units_) {
      const auto count = static_cast<std::int64_t>(unit.flat_count);
      master_.push_back(initial_values(unit).to(device_));
      first_.push_back(torch::zeros({count}, fp32));
      second_.push_back(torch::zeros({count}, fp32));
      weight_.push_back(master_.back().to(torch::kBFloat16));
      gradient_.push_back(torch::zeros({count}, fp32.dtype(torch::kBFloat16)));
      steps_.push_back(torch::zeros({}, fp32));
    }
    make_gradient32();
    for (std::size_t u = 0; u < units_.size(); ++u) {
      modules_[u]->bind(units_[u], weight_[u], lent(u, weight_));
      modules_[u]->bind_gradients(units_[u], gradient_[u], lent(u, gradient_));
    }
  }

  // Takes one step on random tokens and waits for its end. Returns the mean loss.
  double step(std::int64_t micro_batch, std::int64_t accumulation) {
    std::vector<Tensor> losses;
    for (std::int64_t m = 0; m < accumulation; ++m) {
      const Tensor windows =
          torch::randint(model_.vocab_size, {micro_batch, model_.n_positions + 1}, torch::kLong)
              .to(device_);
      Tensor x = windows.narrow(1, 0, model_.n_positions).contiguous();
      for (std::size_t u = 0; u + 1 < modules_.size(); ++u)
        x = modules_[u]->forward(x, models::DropoutKey{});
      const Tensor targets = windows.narrow(1, 1, model_.n_positions).contiguous();
      const Tensor loss =
          modules_.back()->loss(x, targets, 1.0 / static_cast<double>(accumulation));
      losses.push_back(loss.detach());
      loss.backward();
    }
    update();
    double sum = 0;
    for (const Tensor& loss : losses) sum += loss.item<double>();
    if (device_.is_cuda()) torch::cuda::synchronize();
    return sum / static_cast<double>(accumulation);
  }

 private:
  Tensor initial_values(const zero::UnitLayout& unit) const {
    const auto count = static_cast<std::int64_t>(unit.flat_count);
    Tensor values = torch::zeros({count});
    float* data = values.data_ptr<float>();
    const auto size = static_cast<std::size_t>(count);
    executor_->for_each(ceil_div(size, kInitialPiece), [&](std::size_t piece) {
      const std::size_t begin = piece * kInitialPiece;
      models::fill_initial(model_, unit, 1, begin,
                           {data + begin, std::min(kInitialPiece, size - begin)});
    });
    return values;
  }

  // A GPU is short of memory: there, one buffer serves all units in turn.
  void make_gradient32() {
    std::int64_t largest = 0;
    for (const Tensor& master : master_) largest = std::max(largest, master.numel());
    const Tensor shared = device_.is_cuda() ? torch::empty({largest}, device_) : Tensor();
    for (const Tensor& master : master_) {
      gradient32_.push_back(shared.defined() ? shared.narrow(0, 0, master.numel())
                                             : torch::empty({master.numel()}));
    }
  }

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
    const std::size_t at_once = device_.is_cuda() ? 1 : units_.size();
    for (std::size_t u = 0; u < units_.size(); u += at_once) update_units(u, at_once);
  }

  void update_units(std::size_t begin, std::size_t count) {
    for (std::size_t u = begin; u < begin + count; ++u) {
      gradient32_[u].copy_(gradient_[u]);
      gradient_[u].zero_();
      steps_[u].add_(1);
    }
    const auto some = [&](const std::vector<Tensor>& all) {
      return at::TensorList(all).slice(begin, count);
    };
    at::_fused_adamw_(some(master_), some(gradient32_), some(first_), some(second_), {},
                      some(steps_), 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false);
    for (std::size_t u = begin; u < begin + count; ++u) weight_[u].copy_(master_[u]);
  }

  static constexpr std::size_t kInitialPiece = 1 << 20;  // elements

  // LibTorch's parallel_for has one thread in a program that is built without OpenMP.
  const std::unique_ptr<Executor> executor_ = make_executor(at::get_num_threads());
  const config::ModelConfig model_;
  const torch::Device device_;
  const std::vector<zero::UnitLayout> units_;
  const std::vector<std::shared_ptr<models::UnitModule>> modules_;
  std::vector<Tensor> master_, first_, second_, gradient32_;  // fp32, flat, by unit
  std::vector<Tensor> weight_, gradient_;                     // bf16
  std::vector<Tensor> steps_;
};

// Anonymous memory of this process.
long long anonymous_bytes() {
  return static_cast<long long>(proc_bytes("/proc/self/status", {"RssAnon"}).value_or(0));
}

// Loads LibTorch's CUDA library, which the program does not link, so that it starts without a GPU.
torch::Device device_of(const std::string& name) {
  if (name == "cpu") return torch::kCPU;
  SLUICE_CHECK(name == "cuda", "--device " + name + ": expected cpu or cuda");
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* error = ::dlerror();
    SLUICE_CHECK(false, std::string("LibTorch's part for GPUs cannot be loaded: ") +
                            (error == nullptr ? "libtorch_cuda.so" : error));
  }
  SLUICE_CHECK(torch::cuda::is_available(), "LibTorch finds no GPU");
  return torch::kCUDA;
}

int run(const std::vector<std::string>& arguments) {
  const config::ModelConfig model = config::load_model_config(arguments[0]);
  const std::int64_t micro_batch = std::stoll(arguments[1]);
  const std::int64_t accumulation = std::stoll(arguments[2]);
  const int steps = std::stoi(arguments[3]);
  const torch::Device device = device_of(arguments.size() > 4 ? arguments[5] : "cpu");
  torch::manual_seed(1);
  const long long idle = anonymous_bytes();
  PlainGpt2 gpt2(model, device);
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
      seconds.str().c_str(), loss, at::get_num_threads(), idle, anonymous_bytes());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (argc != 5 && !(argc == 7 && arguments[4] == "--device")) {
    std::fprintf(
        stderr,
        "usage: plain_loop MODEL.json MICRO_BATCH ACCUMULATION STEPS [--device cpu|cuda]\n");
    return 2;
  }
  return run(arguments);
} catch (const std::exception& error) {
  std::fprintf(stderr, "plain_loop: %s\n", error.what());
  return 1;
}
