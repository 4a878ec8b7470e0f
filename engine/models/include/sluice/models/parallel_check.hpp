#pragma once
// Whether LibTorch's kernels do all of their work here.

namespace sluice::models {

// Kernels of oneDNN, by which LibTorch multiplies 16-bit matrices, divide their work by the number
// of threads they ask OpenMP for. Where OpenMP gives them fewer (OMP_THREAD_LIMIT,
// OMP_MAX_ACTIVE_LEVELS=0), the rest is not done, and nothing says so. This multiplies two small
// matrices with the threads set at present, and throws InvalidArgument when the product is wrong.
// Thread-compatible: as at::set_num_threads.
void check_parallel_work();

}  // namespace sluice::models
