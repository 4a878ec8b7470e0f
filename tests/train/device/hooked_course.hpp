#pragma once
// The small transformer, trained with the calls that hooks on a model make. Confined to a thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/run_device.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/train/hooked_loop.hpp"
#include "train/engine/engine_support.hpp"
#include "user_loop/loop_core.hpp"
#include "user_loop/unit_order.hpp"

namespace sluice::train::test {

// The two loops that have these calls.
inline void enter(HookedLoop& loop, std::size_t unit) {
  loop.enter(unit, Pass::training);
}
inline void enter(LoopCore& loop, std::size_t unit) {
  loop.enter(unit, Pass::training);
}
inline std::size_t add_unit(HookedLoop& loop, const std::string& name,
                            const std::vector<std::pair<std::string, torch::Tensor>>& params) {
  return loop.add_unit(name, params, {});
}
inline std::size_t add_unit(LoopCore& loop, const std::string& name,
                            const std::vector<std::pair<std::string, torch::Tensor>>& params) {
  OwnUnit unit;
  unit.name = name;
  for (const auto& [param, value] : params) unit.named.push_back({param, value});
  return loop.add_unit(std::move(unit));
}

// Each unit has a graph of its own, from its input to its output.
template <typename AnyLoop>
class HookedModel {
 public:
  HookedModel(AnyLoop& loop, sluice::test::Model model, int accumulation)
      : loop_(loop), model_(std::move(model)), accumulation_(accumulation) {
    add("embed", *model_.embed, [this](const torch::Tensor& x) { return model_.embed(x); });
    for (std::size_t i = 0; i < model_.blocks.size(); ++i) {
      add("h." + std::to_string(i), *model_.blocks[i],
          [this, i](const torch::Tensor& x) { return x + model_.blocks[i](x); });
    }
    add("head", *model_.head, [this](const torch::Tensor& x) { return model_.head(x); });
    loop_.initialize();
  }

  // `where`: of the batches.
  sluice::test::Course take_steps(int first, int count, torch::Device where = torch::kCPU) {
    sluice::test::Course course;
    for (int step = first; step < first + count; ++step) {
      for (int i = 0; i < accumulation_; ++i) take_micro_batch(step * accumulation_ + i, where);
      const StepResult result = loop_.end_step({});
      course.losses.push_back(result.loss);
      course.norms.push_back(result.gradient_norm);
    }
    for (const std::string& name : sluice::test::parameter_names())
      course.weights.push_back(sluice::test::bytes_of(loop_.parameter(name)));
    return course;
  }

  // From now on backward expects these values of the step.
  void expect(std::vector<GroupValues> groups) { expected_ = std::move(groups); }

  // From now on a micro-batch calls the unit again after its call.
  void call_twice(std::size_t unit) {
    const auto at = static_cast<std::ptrdiff_t>(unit);
    const auto forward = forwards_[unit];
    units_.insert(units_.begin() + at, units_[unit]);
    forwards_.insert(forwards_.begin() + at, forward);
  }

  // Forward and backward of batch `index`.
  void take_micro_batch(int index, torch::Device where) {
    const sluice::test::Batch batch = sluice::test::batch(index);
    std::vector<Called> calls;
    torch::Tensor x = batch.inputs.to(where);
    for (std::size_t i = 0; i < units_.size(); ++i) {
      torch::Tensor input = x.detach();
      if (input.is_floating_point()) input.requires_grad_(true);
      enter(loop_, units_[i]);
      calls.push_back({units_[i], input, forwards_[i](input)});
      loop_.leave(units_[i]);
      x = calls.back().output;
    }
    const torch::Tensor logits = x.detach().requires_grad_(true);
    const torch::Tensor loss = sluice::test::cross_entropy(logits, batch.targets.to(where));
    loop_.add_loss(loss);
    (loss / accumulation_).backward();
    backward(calls, logits.grad());
  }

  // The logits of a batch. They may not be computed yet when it returns.
  torch::Tensor evaluate(int index) {
    const torch::NoGradGuard no_grad;
    torch::Tensor x = sluice::test::batch(index).inputs;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      enter(loop_, units_[i]);
      x = forwards_[i](x);
      loop_.leave(units_[i]);
    }
    return x;
  }

 private:
  struct Called {
    std::size_t unit;
    torch::Tensor input;
    torch::Tensor output;
  };

  void add(const std::string& name, const torch::nn::Module& module,
           std::function<torch::Tensor(const torch::Tensor&)> forward) {
    std::vector<std::pair<std::string, torch::Tensor>> params;
    for (const auto& param : module.named_parameters())
      params.emplace_back(name + "." + param.key(), param.value());
    units_.push_back(add_unit(loop_, name, params));
    forwards_.push_back(std::move(forward));
  }

  void backward(const std::vector<Called>& calls, torch::Tensor gradient) {
    loop_.begin_backward(expected_);
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      enter(loop_, call->unit);
      loop_.begin_gradients(call->unit);
      call->output.backward(gradient);
      loop_.send_gradients(call->unit);
      loop_.leave(call->unit);
      gradient = call->input.grad();
    }
    loop_.end_micro_batch();
  }

  AnyLoop& loop_;
  sluice::test::Model model_;
  const int accumulation_;
  std::vector<std::size_t> units_;
  std::vector<std::function<torch::Tensor(const torch::Tensor&)>> forwards_;
  std::vector<GroupValues> expected_;
};

inline constexpr std::uint64_t kMemoryBytes = 64U << 20U;

// A loop on a device of the test's, and its model.
struct OnDevice {
  OnDevice(const sluice::test::LoopSetup& setup, RunDevice device)
      : loop(sluice::test::config_of(setup, swap.path()), {}, brought(std::move(device))),
        model(loop, with_a_frozen_weight(), setup.accumulation) {}
  // On the host, where LibTorch keeps its memory.
  explicit OnDevice(const sluice::test::LoopSetup& setup)
      : loop(sluice::test::config_of(setup, swap.path()), {},
             BroughtDevice{.make = make_device_beside_libtorch}),
        model(loop, with_a_frozen_weight(), setup.accumulation) {}

  static BroughtDevice brought(RunDevice device) {
    device.allocator.reset();
    return {.facts =
                [](const config::TrainConfig& config) {
                  plan::MachineFacts facts = plan::probe_machine(config);
                  facts.device.host_addressable = false;
                  facts.device.has_update_kernels = true;
                  plan::GpuFacts& gpu = facts.device.gpu.emplace();
                  gpu.total_bytes = gpu.free_bytes = kMemoryBytes;
                  return facts;
                },
            .make = [made = std::make_shared<RunDevice>(std::move(device))](
                        const plan::Plan&) { return std::move(*made); }};
  }
  static sluice::test::Model with_a_frozen_weight() {
    sluice::test::Model model;
    model.blocks[2]->up->weight.set_requires_grad(false);
    return model;
  }

  const sluice::test::TempDir swap;
  LoopCore loop;
  HookedModel<LoopCore> model;
};

}  // namespace sluice::train::test
