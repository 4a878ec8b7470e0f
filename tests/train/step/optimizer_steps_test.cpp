// Every optimizer of the configuration, with and without parameter groups: 100 fp32 updates beside
// torch.optim or the formula in double, and equal bits on every tier.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "optimizer_updates.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {
namespace {

using test::optimizer_cases;
using test::OptimizerCase;
using test::OptimizerUpdates;
using test::UpdateSetup;
using test::Where;
using Type = config::OptimizerType;

constexpr int kUpdates = 100;
// The masters differ by roundings of fp32 only: each update rounds the master by half a unit in the
// last place of at most 2^-24, and 100 of them differ by less than 1e-6 where values are below 0.5.
constexpr double kTolerance = 1e-6;

// A parameter of the model and its group's values.
struct Param {
  std::size_t unit = 0;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  config::OptimizerConfig optimizer;
};

// The values are found here by name and shape, without the code that is tested.
config::OptimizerConfig values_for(const OptimizerCase& each, const zero::ParamLayout& param) {
  config::OptimizerConfig values = each.optimizer;
  const bool is_embedding =
      param.name.find("wte") != std::string::npos || param.name.find("wpe") != std::string::npos;
  const bool is_first = param.name.find("h.0.") != std::string::npos;
  const config::GroupConfig* own = nullptr;
  if (is_embedding && !each.groups.entries.empty()) own = &each.groups.entries[0];
  if (is_first && each.groups.entries.size() > 1) own = &each.groups.entries[1];
  if (each.groups.no_decay_of_biases_and_norms && param.shape.size() == 1) values.weight_decay = 0;
  if (own == nullptr) return values;
  values.lr = own->lr.value_or(values.lr);
  values.beta1 = own->beta1.value_or(values.beta1);
  values.beta2 = own->beta2.value_or(values.beta2);
  values.momentum = own->momentum.value_or(values.momentum);
  if (own->weight_decay) values.weight_decay = *own->weight_decay;
  return values;
}

std::vector<Param> params_of(const OptimizerCase& each, const plan::Plan& plan) {
  std::vector<Param> params;
  for (std::size_t u = 0; u < plan.layouts.size(); ++u) {
    for (const zero::ParamLayout& param : plan.layouts[u].params) {
      params.push_back({u, static_cast<std::int64_t>(param.offset_count),
                        static_cast<std::int64_t>(param.count), values_for(each, param)});
    }
  }
  return params;
}

torch::Tensor slice(const torch::Tensor& flat, const Param& param) {
  return flat.slice(0, param.offset, param.offset + param.count);
}

// torch.optim over a single parameter.
std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const config::OptimizerConfig& o,
                                                         const torch::Tensor& param) {
  const std::vector<torch::Tensor> params = {param};
  const auto betas = std::make_tuple(o.beta1, o.beta2);
  switch (o.type) {
    case Type::adam:
      return std::make_unique<torch::optim::Adam>(params, torch::optim::AdamOptions(o.lr)
                                                              .betas(betas)
                                                              .eps(o.eps)
                                                              .weight_decay(o.weight_decay)
                                                              .amsgrad(o.amsgrad));
    case Type::adamw:
      return std::make_unique<torch::optim::AdamW>(params, torch::optim::AdamWOptions(o.lr)
                                                               .betas(betas)
                                                               .eps(o.eps)
                                                               .weight_decay(o.weight_decay)
                                                               .amsgrad(o.amsgrad));
    case Type::adagrad:
      return std::make_unique<torch::optim::Adagrad>(
          params, torch::optim::AdagradOptions(o.lr)
                      .lr_decay(o.lr_decay)
                      .weight_decay(o.weight_decay)
                      .initial_accumulator_value(o.initial_accumulator_value)
                      .eps(o.eps));
    case Type::sgd:
      return std::make_unique<torch::optim::SGD>(params, torch::optim::SGDOptions(o.lr)
                                                             .momentum(o.momentum)
                                                             .dampening(o.dampening)
                                                             .weight_decay(o.weight_decay)
                                                             .nesterov(o.nesterov));
    case Type::lion:
      break;
  }
  return nullptr;
}

// Lion in double, Chen et al. 2023, Alg. 2. An element whose update is a rounding away from zero
// may take either sign in fp32; `decided` is false for it.
struct LionReference {
  explicit LionReference(const torch::Tensor& first)
      : value(first.to(torch::kFloat64)),
        moment(torch::zeros_like(value)),
        decided(torch::ones_like(value, torch::kBool)) {}
  void step(const config::OptimizerConfig& o, double rate, const torch::Tensor& gradient) {
    const torch::Tensor g = gradient.to(torch::kFloat64);
    const torch::Tensor c = o.beta1 * moment + (1 - o.beta1) * g;
    decided = decided & (c.abs() > 1e-7);
    value = value - rate * (c.sign() + o.weight_decay * value);
    moment = o.beta2 * moment + (1 - o.beta2) * g;
  }
  torch::Tensor value, moment, decided;
};

UpdateSetup fp32_setup(const OptimizerCase& each) {
  UpdateSetup setup{.optimizer = each, .dtype = DType::fp32, .master = config::MasterFormat::fp32};
  // A rate that changes with every step.
  setup.scheduler = config::WarmupLR{.warmup_min_lr = 0.1 * each.optimizer.lr,
                                     .warmup_max_lr = each.optimizer.lr,
                                     .warmup_num_steps = 50,
                                     .warmup_type = config::WarmupType::linear};
  return setup;
}

class OptimizerSteps : public testing::TestWithParam<OptimizerCase> {};

TEST_P(OptimizerSteps, AHundredAgreeWithTorchOrTheFormulaInDouble) {
  OptimizerUpdates updates(fp32_setup(GetParam()));
  const std::vector<Param> params = params_of(GetParam(), updates.plan());
  std::vector<torch::Tensor> values;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  std::vector<LionReference> lions;
  for (const Param& param : params) {
    values.push_back(slice(updates.weights(param.unit), param).clone());
    optimizers.push_back(torch_optimizer(param.optimizer, values.back()));
    lions.emplace_back(values.back());
  }
  for (int step = 1; step <= kUpdates; ++step) {
    updates.take_step(step);
    const double scheduled = config::learning_rate(updates.plan().config, step);
    std::vector<torch::Tensor> gradients;
    for (std::size_t u = 0; u < updates.units(); ++u)
      gradients.push_back(updates.gradient(u, step));
    for (std::size_t i = 0; i < params.size(); ++i) {
      const double rate = scheduled * params[i].optimizer.lr / GetParam().optimizer.lr;
      const torch::Tensor gradient = slice(gradients[params[i].unit], params[i]).clone();
      if (!optimizers[i]) {
        lions[i].step(params[i].optimizer, rate, gradient);
        continue;
      }
      optimizers[i]->param_groups()[0].options().set_lr(rate);
      values[i].mutable_grad() = gradient;
      optimizers[i]->step();
    }
  }
  double worst = 0, moved = 0, undecided = 0, all = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const torch::Tensor ours =
        slice(updates.weights(params[i].unit), params[i]).to(torch::kFloat64);
    const bool is_lion = !optimizers[i];
    const torch::Tensor reference = is_lion ? lions[i].value : values[i].to(torch::kFloat64);
    torch::Tensor error = (ours - reference).abs();
    if (is_lion) {
      error = error.masked_fill(lions[i].decided.logical_not(), 0);
      undecided += lions[i].decided.logical_not().sum().item<double>();
    }
    all += static_cast<double>(params[i].count);
    worst = std::max(worst, error.max().item<double>());
    moved = std::max(moved, ours.abs().max().item<double>());
  }
  EXPECT_LT(worst, kTolerance);
  EXPECT_GT(moved, 0.025) << "the updates moved nothing";
  EXPECT_LT(undecided, 0.01 * all);
  std::ostringstream text;
  text << worst;
  RecordProperty("worst", text.str());
}

std::vector<torch::Tensor> weights_after(const UpdateSetup& setup, int steps) {
  OptimizerUpdates updates(setup);
  for (int step = 1; step <= steps; ++step) updates.take_step(step);
  std::vector<torch::Tensor> weights;
  for (std::size_t u = 0; u < updates.units(); ++u) weights.push_back(updates.weights(u));
  return weights;
}

TEST_P(OptimizerSteps, EveryTierAndFormatGivesEqualBits) {
  constexpr int kSteps = 3;
  for (const DType dtype : {DType::bf16, DType::fp32, DType::fp16}) {
    for (const auto moments : {config::MomentFormat::fp32, config::MomentFormat::bf16}) {
      UpdateSetup setup{.optimizer = GetParam(), .where = Where::device, .dtype = dtype};
      setup.master =
          dtype == DType::bf16 ? config::MasterFormat::split : config::MasterFormat::fp32;
      setup.moments = moments;
      const std::vector<torch::Tensor> resident = weights_after(setup, kSteps);
      for (const Where where : {Where::stand_in_gpu, Where::host, Where::nvme}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", moments in " +
                     std::string(config::name_of(moments)) + ", place " +
                     std::to_string(static_cast<int>(where)));
        setup.where = where;
        const std::vector<torch::Tensor> weights = weights_after(setup, kSteps);
        for (std::size_t u = 0; u < weights.size(); ++u)
          EXPECT_TRUE(torch::equal(weights[u], resident[u])) << u;
      }
    }
  }
}

// A power of two changes no bit: neither a loss scale that the update divides out, nor clipping.
TEST_P(OptimizerSteps, TheGradientFactorIsAppliedFirst) {
  UpdateSetup setup = fp32_setup(GetParam());
  const std::vector<torch::Tensor> expected = weights_after(setup, 3);
  setup.gradient_scale = 0.1 * 1024;
  setup.gradient_factor = 1.0F / 1024;
  const std::vector<torch::Tensor> weights = weights_after(setup, 3);
  for (std::size_t u = 0; u < weights.size(); ++u)
    EXPECT_TRUE(torch::equal(weights[u], expected[u])) << u;
}

// Cutting a piece at the borders of groups changes no bit, nor the noise of bf16 moments.
TEST_P(OptimizerSteps, GroupsWithEqualValuesChangeNothing) {
  UpdateSetup setup{.optimizer = GetParam(), .moments = config::MomentFormat::bf16};
  setup.optimizer.groups = {};
  const std::vector<torch::Tensor> whole = weights_after(setup, 3);
  setup.optimizer.groups.entries = {
      {.match = {"*.bias", "*.c_fc.weight"}, .weight_decay = GetParam().optimizer.weight_decay}};
  const std::vector<torch::Tensor> cut = weights_after(setup, 3);
  for (std::size_t u = 0; u < cut.size(); ++u) EXPECT_TRUE(torch::equal(cut[u], whole[u])) << u;
}

TEST_P(OptimizerSteps, TheStatesHaveTheMomentsOfTheKernels) {
  const config::OptimizerConfig& optimizer = GetParam().optimizer;
  EXPECT_EQ(cpu_adam::moment_count(models::rule_of(optimizer)),
            cpu_adam::moment_count(kernel_config(optimizer, 1e-3)));
}

TEST_P(OptimizerSteps, MaximizeFollowsTheNegativeGradient) {
  if (GetParam().optimizer.type == Type::lion) return;  // it has no maximize
  UpdateSetup minimizes{.optimizer = GetParam(), .gradient_scale = -0.1};
  UpdateSetup maximizes{.optimizer = GetParam()};
  maximizes.optimizer.optimizer.maximize = true;
  const std::vector<torch::Tensor> expected = weights_after(minimizes, 3);
  const std::vector<torch::Tensor> weights = weights_after(maximizes, 3);
  for (std::size_t u = 0; u < weights.size(); ++u)
    EXPECT_TRUE(torch::equal(weights[u], expected[u])) << u;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerSteps, testing::ValuesIn(optimizer_cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sluice::train
