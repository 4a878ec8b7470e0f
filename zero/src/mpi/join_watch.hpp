#pragma once
// JoinWatch: a thread beside the call that joins the ranks. MPI_Init waits for all ranks, and
// nothing interrupts it: a rank that never comes would hold the others for ever. Not installed.

#include <atomic>
#include <chrono>
#include <thread>

#include "sluice/base/launch_environment.hpp"

namespace sluice::zero {

// While it lives, it may end the process, without destructors:
// - after `limit` (0: never), with exit code 1 and a line on standard error;
// - when `stop` (null: none) becomes the number of a signal, with exit code 128 + number.
class JoinWatch {
 public:
  // `place`: of this rank. `stop` outlives the watch.
  JoinWatch(std::chrono::duration<double> limit, const std::atomic<int>* stop,
            const LaunchEnvironment& place);
  ~JoinWatch();
  JoinWatch(const JoinWatch&) = delete;
  JoinWatch& operator=(const JoinWatch&) = delete;

 private:
  std::atomic<bool> joined_{false};
  std::thread thread_;
};

}  // namespace sluice::zero
