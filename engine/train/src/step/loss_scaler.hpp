#pragma once
// LossScaler: what a step's loss is multiplied with before its backward, so that small gradients
// are not lost in fp16, and how that follows from overflows: DeepSpeed's rules, which
// docs/numerics.md has. Without fp16 the scale is 1 and stays. Not here: what has overflowed, which
// GradientFlow finds. No LibTorch.

#include <optional>
#include <string>

#include "sluice/config/train_config.hpp"
#include "sluice/models/run_state.hpp"

namespace sluice::train {

// Thread-compatible: callers synchronise.
class LossScaler {
 public:
  explicit LossScaler(const config::Fp16Config& config = {});

  // Of the step that comes; finite in fp32, and its reciprocal too.
  double scale() const { return state_.scale; }
  // The same with fp16; empty without, where it means nothing.
  std::optional<double> reported() const;

  // Why a step that overflowed (its loss or a gradient is not finite) ends the run; empty: the step
  // is skipped, and overflowed() is called.
  struct Stop {
    std::string reason;
    std::string advice;
  };
  std::optional<Stop> why_stop(config::NonFinite non_finite) const;
  // After a step that was skipped. Returns what became of the scale, as the end of a line for
  // people; empty without fp16.
  std::string overflowed();
  // After a step that updated the weights.
  void updated();

  // What a resumed run needs to go on with the same scales; empty when the scale does not change.
  std::optional<models::LossScaleState> state() const;
  // Within the limits of this configuration. Empty: the state was written without a dynamic scale;
  // begins at the configuration's.
  void restore(const std::optional<models::LossScaleState>& state);

 private:
  bool is_dynamic() const { return config_.enabled && config_.is_dynamic(); }

  config::Fp16Config config_;
  models::LossScaleState state_;
};

}  // namespace sluice::train
