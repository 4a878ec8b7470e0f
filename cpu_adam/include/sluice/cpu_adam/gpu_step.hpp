#pragma once
// The step of a run on a GPU, with the bits of the host's kernels. A part of the engine's library
// for GPUs, in builds with nvcc; not installed. Thread-safe: a free function without state.

#include <cstdint>

#include "sluice/cpu_adam/step_arguments.hpp"

struct CUstream_st;  // the CUDA runtime's cudaStream_t points to it

namespace sluice::cpu_adam {

// The engine's kernels for GPUs are compiled for this compute capability and later ones; an earlier
// GPU has no kernel image.
inline constexpr int kLeastGpuMajor = 8;

// Issues the run to `stream`, a stream of the calling thread's GPU. Every address of `step` is in
// that GPU's memory, and stays valid until the work has run. The work sets *non_finite, also in
// that memory, to 1 if a value that it wrote is non-finite, with the limits of step_tile(); else
// leaves it. Does not block. Returns the runtime's cudaError_t: 0 for success.
[[nodiscard]] int launch_step(const StepArguments& step, std::uint32_t* non_finite,
                              CUstream_st* stream);

}  // namespace sluice::cpu_adam
