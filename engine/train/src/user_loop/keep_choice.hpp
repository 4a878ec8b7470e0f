#pragma once
// KeepChoice: for which units a user's loop keeps LibTorch's graph from forward to backward, and
// which are called again. What a graph takes is not known before it was made once: with `auto` the
// first two micro-batches keep none, and the peak of their device memory tells how much of the
// budget is left for graphs; the last units' are kept first.
//
// Confined to the computing thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sluice/config/train_config.hpp"

namespace sluice::train {

class KeepChoice {
 public:
  // No budget: with `auto` everything is kept.
  KeepChoice(config::Activations activations, std::optional<std::uint64_t> budget_bytes,
             std::size_t units);

  bool keep(std::size_t unit) const { return keep_[unit]; }
  // The graph of a call, made just now, holds this much.
  void measured(std::size_t unit, std::uint64_t graph_bytes);
  // Forward and backward of a micro-batch have ended; `peak_bytes` is the peak since the first.
  void end_micro_batch(std::uint64_t peak_bytes);

 private:
  struct Call {
    std::size_t unit;
    std::uint64_t graph_bytes;
  };

  const std::uint64_t budget_bytes_;
  std::vector<bool> keep_;   // by unit
  int to_measure_;           // micro-batches; the first one gathers nothing ahead
  std::vector<Call> calls_;  // of the micro-batch
};

}  // namespace sluice::train
