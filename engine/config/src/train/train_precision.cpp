#include "train/train_precision.hpp"

#include <cmath>
#include <string>

#include "sluice/base/dtype.hpp"

namespace sluice::config {

namespace {

// Gradients are divided by the scale in fp32, so the scale's reciprocal must be finite in fp32.
constexpr double kLeastScale = 1e-30;

void check_scales(Checker& checker, const Fp16Config& fp16) {
  if (!fp16.is_dynamic()) {
    if (fp16.loss_scale < kLeastScale) {
      checker.add_problem("fp16.loss_scale",
                          "expected 0, which is dynamic, or a scale from 1e-30 on");
    }
    return;
  }
  if (checker.wrong("fp16.initial_scale_power") || checker.wrong("fp16.min_loss_scale")) return;
  if (fp16.min_loss_scale <= fp16.initial_scale()) return;
  checker.add_problem("fp16.min_loss_scale", "above the scale that the run begins with, 2^" +
                                                 std::to_string(fp16.initial_scale_power) +
                                                 ": raise initial_scale_power, or lower this");
}

void note_keys_of_dynamic_scale(Checker& checker, const Fp16Config& fp16) {
  Fp16Config::visit_dynamic(fp16, [&](const std::string& name, const auto&) {
    checker.note_without_effect("fp16." + name, "loss_scale is 0, which is dynamic");
  });
}

bool names_fp32(const std::string& name) {
  return name.ends_with("float32") || name == "fp32" || name == "float";
}

DType dtype_named(const std::string& name) {
  if (names_fp32(name)) return DType::fp32;
  return name == "bf16" || name.ends_with("bfloat16") ? DType::bf16 : DType::fp16;
}

void read_gradient_sums(Checker& checker, TrainConfig& config) {
  constexpr const char* kKey = "data_types.grad_accum_dtype";
  const DType compute = config.compute_dtype();
  std::string name;
  checker.read(kKey, name);
  if (name.empty()) return;
  const DType asked = dtype_named(name);
  if (asked == compute) return;
  if (asked == DType::fp32) {
    config.fp32_gradient_sums = true;
    return;
  }
  checker.add_note(kKey, "no effect: gradients are computed in " + std::string(name_of(compute)) +
                             ", and sums in " + name + " would round them");
}

// Weights and buffers have the type that computes. DeepSpeed refuses another one too.
void check_types(Checker& checker, const TrainConfig& config) {
  const DType compute = config.compute_dtype();
  for (const char* key : {"data_types.param_dtype", "data_types.buffer_dtype"}) {
    std::string name;
    checker.read(key, name);
    if (name.empty() || dtype_named(name) == compute) continue;
    const std::string other(name_of(dtype_named(name)));
    checker.add_problem(
        key, "the run computes in " + std::string(name_of(compute)) + ", found " + quoted(name) +
                 "; " +
                 (other == "fp32" ? "remove it, or switch bf16 and fp16 off"
                                  : "remove it, or write \"" + other + "\": {\"enabled\": true}"));
  }
}

}  // namespace

void read_precision(Checker& checker, TrainConfig& config) {
  Fp16Config& fp16 = config.fp16;
  checker.read("bf16.enabled", config.bf16);
  checker.read("fp16.enabled", fp16.enabled);
  if (config.bf16 && fp16.enabled) {
    checker.add_problem("fp16.enabled",
                        "bf16.enabled is true as well, and a model computes in one type; remove "
                        "one of the two");
  }
  read_gradient_sums(checker, config);
  if (!checker.wrong("fp16.enabled")) check_types(checker, config);
  if (!fp16.enabled) return;
  fp16.is_unpartitioned = config.zero.stage == 0;
  checker.read("fp16.loss_scale", fp16.loss_scale);
  if (fp16.is_dynamic()) {  // otherwise their ranges are not checked
    Fp16Config::visit_dynamic(
        fp16, [&](const std::string& name, auto& value) { checker.read("fp16." + name, value); });
  }
  if (checker.wrong("fp16.loss_scale")) return;
  check_scales(checker, fp16);
  if (!fp16.is_dynamic()) {
    note_keys_of_dynamic_scale(checker, fp16);
  } else if (fp16.is_unpartitioned) {
    for (const char* path : {"fp16.hysteresis", "fp16.consecutive_hysteresis"}) {
      if (checker.has_other_value(path))
        checker.add_note(path,
                         "no effect at ZeRO stage 0, as in DeepSpeed: every overflow halves "
                         "the scale");
    }
  }
}

double Fp16Config::initial_scale() const {
  return is_dynamic() ? std::ldexp(1.0, initial_scale_power) : loss_scale;
}

DType TrainConfig::compute_dtype() const {
  if (fp16.enabled) return DType::fp16;
  return bf16 ? DType::bf16 : DType::fp32;
}

bool TrainConfig::updates_need_all_gradients() const {
  return gradient_clipping > 0 || fp16.enabled;
}

}  // namespace sluice::config
