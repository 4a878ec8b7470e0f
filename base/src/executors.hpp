#pragma once
// The executors of this build, on any description of a machine: tests bring one with several
// NUMA nodes. Thread-safe: a free function without state.

#include <memory>

#include "numa.hpp"
#include "sluice/base/executor.hpp"

namespace sluice {

// Like make_executor(), with the NUMA nodes of `numa`, which outlives the executor.
std::unique_ptr<Executor> make_executor_on(const Numa& numa, int threads, ExecutorKind kind,
                                           ThreadPriority priority = ThreadPriority::normal);

}  // namespace sluice
