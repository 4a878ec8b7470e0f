#pragma once
// LossScaler: the factor of a step's loss before its backward, so that small gradients are not lost
// in fp16. A dynamic scale follows from overflows by DeepSpeed's rules (docs/numerics.md). Without
// fp16 the scale is 1. GradientFlow finds overflows, not this class. No LibTorch.

#include <optional>
#include <string>

#include "sluice/config/train_config.hpp"
#include "sluice/models/run_state.hpp"

namespace sluice::train {

// Thread-compatible: callers synchronise.
class LossScaler {
 public:
  explicit LossScaler(const config::Fp16Config& config = {});

  // Scale of the next step. It and its reciprocal are finite in fp32.
  double scale() const { return state_.scale; }
  // scale() with fp16; empty without fp16.
  std::optional<double> reported() const;

  // Why a step with a non-finite loss or gradient ends the run. Empty: the caller skips the step
  // and calls overflowed().
  struct Stop {
    std::string reason;
    std::string advice;
  };
  std::optional<Stop> why_stop(config::NonFinite non_finite) const;
  // After a skipped step: lowers a dynamic scale. Returns the change as the end of a log line;
  // empty without fp16.
  std::string overflowed();
  // After a step that updated the weights: raises a dynamic scale after a whole window.
  void updated();

  // State that a resumed run continues from; empty when the scale is constant.
  std::optional<models::LossScaleState> state() const;
  // Continues from a saved state, within the limits of this configuration. Empty (saved without a
  // dynamic scale): begins at the configuration's scale.
  void restore(const std::optional<models::LossScaleState>& state);

 private:
  bool is_dynamic() const { return config_.enabled && config_.is_dynamic(); }

  config::Fp16Config config_;
  models::LossScaleState state_;
};

}  // namespace sluice::train
