#include "user_loop/activation_choice.hpp"

namespace sluice::train {

using config::Activations;

ActivationChoice::ActivationChoice(Activations activations,
                                   std::optional<std::uint64_t> budget_bytes, std::size_t units)
    : budget_bytes_(budget_bytes.value_or(0)),
      saves_(units, activations == Activations::keep ||
                        (activations == Activations::automatic && !budget_bytes)),
      to_measure_(activations == Activations::automatic && budget_bytes ? 2 : 0) {}

void ActivationChoice::measured(std::size_t unit, std::uint64_t graph_bytes) {
  if (to_measure_ > 0) calls_.push_back({unit, graph_bytes});
}

void ActivationChoice::end_micro_batch(std::uint64_t peak_bytes) {
  if (to_measure_ == 0) return;
  if (--to_measure_ == 0) {
    std::vector<std::uint64_t> by_unit(saves_.size(), 0);
    for (const Call& call : calls_) by_unit[call.unit] += call.graph_bytes;
    std::uint64_t held_bytes = peak_bytes;
    for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
      if (saves_[call->unit]) continue;
      held_bytes += by_unit[call->unit];
      if (held_bytes > budget_bytes_) break;
      saves_[call->unit] = true;
    }
  }
  calls_.clear();
}

}  // namespace sluice::train
