// The step of a run on a GPU: the element of the scalar kernel, one after another in each thread.
// The intrinsics below are the IEEE operations, rounded to nearest, so no option of the compiler
// fuses or approximates one; --ftz=false keeps subnormals.

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "rounding.hpp"
#include "sluice/cpu_adam/gpu_step.hpp"
#include "tile_arguments.hpp"

#define KERNEL_INLINE __device__ __forceinline__

namespace sluice::cpu_adam {

namespace {

constexpr unsigned kThreads = 256;
// Enough for the memory's bandwidth, by estimate: half of an H100's 3.3 TB/s are reads, which wait
// 700 ns. So 1.2 MB are to be under way, 10 bytes or more for an element. These threads take half of
// that GPU's 270,000 and leave the others to the training step beside them.
constexpr std::size_t kMostBlocks = 512;

KERNEL_INLINE float add(float a, float b) { return __fadd_rn(a, b); }
KERNEL_INLINE float sub(float a, float b) { return __fsub_rn(a, b); }
KERNEL_INLINE float mul(float a, float b) { return __fmul_rn(a, b); }
KERNEL_INLINE float div(float a, float b) { return __fdiv_rn(a, b); }
KERNEL_INLINE float root(float a) { return __fsqrt_rn(a); }
KERNEL_INLINE float mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// The instruction makes every NaN 0x7FFF. to_fp16() makes the one of one_nan() 0x7E00.
KERNEL_INLINE Fp16 fp16_of(float value) {
  if (magnitude_bits(value) > kInfinityBits) return Fp16{0x7E00};
  return Fp16{__half_as_ushort(__float2half_rn(value))};
}
KERNEL_INLINE float fp32_of(Fp16 value) { return __half2float(__ushort_as_half(value.bits)); }

#include "scalar_element.inc.hpp"

template <class R, MasterLayout kLayout, class M>
__global__ void step_run(StepConstants constants, TileArguments tile, std::uint32_t* non_finite) {
  const Lanes c(constants);
  const StateLayout layout{kLayout, R::kMoments, sizeof(M)};
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  bool finite = true;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < tile.count; i += stride) {
    if (!step_element<R, kLayout, M>(c, constants.gradient_factor, tile, i))
      finite = finite_in_memory(tile, layout, i) && finite;
  }
  if (!finite) *non_finite = 1;  // several threads may; all write one value
}

using KernelFunction = void (*)(StepConstants, TileArguments, std::uint32_t*);

template <class R>
KernelFunction kernel_of(const StepArguments& step) {
  if (step.master == MasterLayout::split)
    return step.bf16_moments ? &step_run<R, MasterLayout::split, Bf16>
                             : &step_run<R, MasterLayout::split, float>;
  return step.bf16_moments ? &step_run<R, MasterLayout::fp32, Bf16>
                           : &step_run<R, MasterLayout::fp32, float>;
}

KernelFunction kernel_for(const StepArguments& step) {
  switch (step.rule) {
    case Rule::adam:
      return kernel_of<Adam>(step);
    case Rule::amsgrad:
      return kernel_of<AmsGrad>(step);
    case Rule::adagrad:
      return kernel_of<Adagrad>(step);
    case Rule::lion:
      return kernel_of<Lion>(step);
    case Rule::momentum:
      return kernel_of<Momentum>(step);
    case Rule::sgd:
      break;
  }
  return kernel_of<Sgd>(step);
}

}  // namespace

int launch_step(const StepArguments& step, std::uint32_t* non_finite, CUstream_st* stream) {
  const std::size_t count = step.tile.count;
  if (count == 0) return cudaSuccess;
  const std::size_t blocks = std::min((count - 1) / kThreads + 1, kMostBlocks);
  kernel_for(step)<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(step.constants,
                                                                           step.tile, non_finite);
  return cudaGetLastError();
}

}  // namespace sluice::cpu_adam
