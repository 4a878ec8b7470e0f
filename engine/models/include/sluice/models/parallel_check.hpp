#pragma once
// Whether LibTorch's kernels do all of their work here.

namespace sluice::models {

// LibTorch's kernels divide their work by the number of threads they ask OpenMP for. Where OpenMP
// gives them fewer (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS=0, OMP_DYNAMIC), the rest is not done,
// and nothing says so. This has a kernel add to every element of a tensor with the threads set at
// present, and throws InvalidArgument when some were left out. Takes a MiB for a moment.
// Thread-compatible: as at::set_num_threads.
void check_parallel_work();

}  // namespace sluice::models
