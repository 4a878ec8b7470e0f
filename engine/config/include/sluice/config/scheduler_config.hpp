#pragma once
// The schedules of the learning rate, with the parameters and defaults of DeepSpeed and of
// torch.optim.lr_scheduler. docs/config.md lists them; sluice/config/lr_schedule.hpp evaluates
// them.
//
// Each type names itself and its parameters: `visit(schedule, f)` calls f(name, member) for each.
// Thread-compatible: plain values.

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

namespace sluice::config {

enum class WarmupType { log, linear };

// DeepSpeed's schedules.

struct WarmupLR {
  static constexpr std::string_view kName = "WarmupLR";
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;  // empty: the optimizer's lr
  std::int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::log;

  static void visit(auto& s, const auto& f) {
    f("warmup_min_lr", s.warmup_min_lr);
    f("warmup_max_lr", s.warmup_max_lr);
    f("warmup_num_steps", s.warmup_num_steps);
    f("warmup_type", s.warmup_type);
  }
};

struct WarmupDecayLR {
  static constexpr std::string_view kName = "WarmupDecayLR";
  std::int64_t total_num_steps = 0;  // required
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  std::int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::log;

  static void visit(auto& s, const auto& f) {
    f("total_num_steps", s.total_num_steps);
    f("warmup_min_lr", s.warmup_min_lr);
    f("warmup_max_lr", s.warmup_max_lr);
    f("warmup_num_steps", s.warmup_num_steps);
    f("warmup_type", s.warmup_type);
  }
};

struct WarmupCosineLR {
  static constexpr std::string_view kName = "WarmupCosineLR";
  std::int64_t total_num_steps = 0;  // required
  double warmup_min_ratio = 0;
  std::int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 1e-4;
  WarmupType warmup_type = WarmupType::log;

  static void visit(auto& s, const auto& f) {
    f("total_num_steps", s.total_num_steps);
    f("warmup_min_ratio", s.warmup_min_ratio);
    f("warmup_num_steps", s.warmup_num_steps);
    f("cos_min_ratio", s.cos_min_ratio);
    f("warmup_type", s.warmup_type);
  }
};

// Sizes count steps. The rate rises in the first half of the cycle and falls in the second; the
// first moment's beta falls and rises. Afterwards the rate decays.
struct OneCycle {
  static constexpr std::string_view kName = "OneCycle";
  double cycle_min_lr = 0;  // required
  double cycle_max_lr = 0;  // required
  double decay_lr_rate = 0;
  std::int64_t cycle_first_step_size = 2000;
  std::int64_t cycle_second_step_size = 2000;  // absent in the file: as the first
  std::int64_t cycle_first_stair_count = 0;    // 0: no stairs
  std::int64_t cycle_second_stair_count = 0;   // absent in the file: as the first
  std::int64_t decay_step_size = 0;            // 0: no decay
  bool cycle_momentum = true;                  // betas of the optimizer are not used
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;

  static void visit(auto& s, const auto& f) {
    f("cycle_min_lr", s.cycle_min_lr);
    f("cycle_max_lr", s.cycle_max_lr);
    f("decay_lr_rate", s.decay_lr_rate);
    f("cycle_first_step_size", s.cycle_first_step_size);
    f("cycle_second_step_size", s.cycle_second_step_size);
    f("cycle_first_stair_count", s.cycle_first_stair_count);
    f("cycle_second_stair_count", s.cycle_second_stair_count);
    f("decay_step_size", s.decay_step_size);
    f("cycle_momentum", s.cycle_momentum);
    f("cycle_min_mom", s.cycle_min_mom);
    f("cycle_max_mom", s.cycle_max_mom);
    f("decay_mom_rate", s.decay_mom_rate);
  }
};

struct LRRangeTest {
  static constexpr std::string_view kName = "LRRangeTest";
  double lr_range_test_min_lr = 1e-3;
  std::int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;

  static void visit(auto& s, const auto& f) {
    f("lr_range_test_min_lr", s.lr_range_test_min_lr);
    f("lr_range_test_step_size", s.lr_range_test_step_size);
    f("lr_range_test_step_rate", s.lr_range_test_step_rate);
    f("lr_range_test_staircase", s.lr_range_test_staircase);
  }
};

// torch's schedules. Their epoch is an optimizer step here, as in DeepSpeed: step 1 is epoch 0.

struct ConstantLR {
  static constexpr std::string_view kName = "ConstantLR";
  double factor = 1.0 / 3;
  std::int64_t total_iters = 5;

  static void visit(auto& s, const auto& f) {
    f("factor", s.factor);
    f("total_iters", s.total_iters);
  }
};

struct LinearLR {
  static constexpr std::string_view kName = "LinearLR";
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  std::int64_t total_iters = 5;

  static void visit(auto& s, const auto& f) {
    f("start_factor", s.start_factor);
    f("end_factor", s.end_factor);
    f("total_iters", s.total_iters);
  }
};

struct PolynomialLR {
  static constexpr std::string_view kName = "PolynomialLR";
  std::int64_t total_iters = 5;
  double power = 1.0;

  static void visit(auto& s, const auto& f) {
    f("total_iters", s.total_iters);
    f("power", s.power);
  }
};

struct StepLR {
  static constexpr std::string_view kName = "StepLR";
  std::int64_t step_size = 0;  // required
  double gamma = 0.1;

  static void visit(auto& s, const auto& f) {
    f("step_size", s.step_size);
    f("gamma", s.gamma);
  }
};

struct MultiStepLR {
  static constexpr std::string_view kName = "MultiStepLR";
  std::vector<std::int64_t> milestones;  // required; one that is given twice counts twice
  double gamma = 0.1;

  static void visit(auto& s, const auto& f) {
    f("milestones", s.milestones);
    f("gamma", s.gamma);
  }
};

struct ExponentialLR {
  static constexpr std::string_view kName = "ExponentialLR";
  double gamma = 0;  // required

  static void visit(auto& s, const auto& f) { f("gamma", s.gamma); }
};

struct CosineAnnealingLR {
  static constexpr std::string_view kName = "CosineAnnealingLR";
  std::int64_t t_max = 0;  // required
  double eta_min = 0;

  static void visit(auto& s, const auto& f) {
    f("T_max", s.t_max);
    f("eta_min", s.eta_min);
  }
};

struct CosineAnnealingWarmRestarts {
  static constexpr std::string_view kName = "CosineAnnealingWarmRestarts";
  std::int64_t t_0 = 0;  // required
  std::int64_t t_mult = 1;
  double eta_min = 0;

  static void visit(auto& s, const auto& f) {
    f("T_0", s.t_0);
    f("T_mult", s.t_mult);
    f("eta_min", s.eta_min);
  }
};

// monostate: the learning rate is constant.
using SchedulerConfig =
    std::variant<std::monostate, WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest,
                 ConstantLR, LinearLR, PolynomialLR, StepLR, MultiStepLR, ExponentialLR,
                 CosineAnnealingLR, CosineAnnealingWarmRestarts>;

}  // namespace sluice::config
