#pragma once
// RankLinks: the communicators that a run's resources own. Thread-compatible: owners.

#include <memory>

#include "sluice/zero/communicator.hpp"

namespace sluice::train {

// The ranks that share a model: two communicators over them, for two threads. Empty: one rank.
struct RankLinks {
  // Used by the thread that reduces gradients, and by the thread that computes between reductions.
  std::unique_ptr<zero::Communicator> communicator;
  std::unique_ptr<zero::Communicator> gather_communicator;  // of the thread that gathers
};

}  // namespace sluice::train
