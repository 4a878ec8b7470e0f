#pragma once
// A check that LibTorch's kernels do all of their work on this machine.

namespace sluice::models {

// Multiplies two small matrices with the current number of threads. Throws InvalidArgument when the
// product is wrong. LibTorch multiplies 16-bit matrices with oneDNN, whose kernels divide their
// work by the number of threads requested from OpenMP. Where OpenMP gives fewer threads
// (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS=0), the missing threads' work is silently not done.
// Thread-compatible: as at::set_num_threads.
void check_parallel_work();

}  // namespace sluice::models
