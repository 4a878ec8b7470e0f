#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "squared_norm.hpp"

namespace sluice::train {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// Each thread reads sixteen bytes at a time, which reaches the memory's bandwidth.
template <typename T>
struct alignas(16) Pack {
  T values[16 / sizeof(T)];
};

__device__ double squared(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}
__device__ double squared(__nv_bfloat16 value) { return squared(__bfloat162float(value)); }
__device__ double squared(__half value) { return squared(__half2float(value)); }

// Sum over the threads of a block, in a fixed order; thread 0 has the whole sum.
__device__ double sum_of_block(double sum) {
  __shared__ double warps[kThreads / kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    sum += __shfl_down_sync(0xFFFFFFFFU, sum, distance);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  double all = 0;
  for (const double warp : warps) all += warp;
  return all;
}

template <typename T>
__global__ void sum_squares(const T* gradient, std::uint64_t count, double* partials) {
  constexpr std::uint64_t kPerPack = 16 / sizeof(T);
  const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  const auto* const packs = reinterpret_cast<const Pack<T>*>(gradient);
  double sum = 0;
  for (std::uint64_t i = first; i < count / kPerPack; i += stride) {
    const Pack<T> pack = packs[i];
    for (const T value : pack.values) sum += squared(value);
  }
  for (std::uint64_t i = count / kPerPack * kPerPack + first; i < count; i += stride)
    sum += squared(gradient[i]);
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void sum_partials(const double* partials, double* result) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kSquaredNormBlocks; i += kThreads)
    sum += partials[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *result = sum;
}

template <typename T>
void launch(const void* gradient, std::uint64_t count, double* partials, cudaStream_t stream) {
  sum_squares<<<kSquaredNormBlocks, kThreads, 0, stream>>>(static_cast<const T*>(gradient), count,
                                                           partials);
}

}  // namespace

cudaError_t launch_squared_norm(const void* gradient, std::uint64_t count, DType dtype,
                                double* partials, double* result, cudaStream_t stream) {
  switch (dtype) {
    case DType::fp32:
      launch<float>(gradient, count, partials, stream);
      break;
    case DType::bf16:
      launch<__nv_bfloat16>(gradient, count, partials, stream);
      break;
    case DType::fp16:
      launch<__half>(gradient, count, partials, stream);
      break;
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  sum_partials<<<1, kThreads, 0, stream>>>(partials, result);
  return cudaGetLastError();
}

}  // namespace sluice::train
