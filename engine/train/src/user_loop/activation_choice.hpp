#pragma once
// ActivationChoice: which units of a user's loop save LibTorch's graph from forward to backward,
// and which units are called again. A graph's size is unknown before it was made once. So with
// `auto` the first two micro-batches save no graph; the peak of their device memory tells how much
// of the budget is left for graphs. The last units save theirs first.
//
// Confined to the computing thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sluice/config/train_config.hpp"

namespace sluice::train {

class ActivationChoice {
 public:
  // Without a budget, `auto` saves every graph.
  ActivationChoice(config::Activations activations, std::optional<std::uint64_t> budget_bytes,
                   std::size_t units);

  bool saves(std::size_t unit) const { return saves_[unit]; }
  // Device bytes of the graph that a call just made.
  void measured(std::size_t unit, std::uint64_t graph_bytes);
  // Forward and backward of a micro-batch have ended; `peak_bytes` is the peak since the first.
  void end_micro_batch(std::uint64_t peak_bytes);

 private:
  struct Call {
    std::size_t unit;
    std::uint64_t graph_bytes;
  };

  const std::uint64_t budget_bytes_;
  std::vector<bool> saves_;  // by unit
  int to_measure_;           // micro-batches left to measure; the first one prefetches nothing
  std::vector<Call> calls_;  // of the micro-batch
};

}  // namespace sluice::train
