#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "../gpu_compute.hpp"
#if SLUICE_HAVE_GPU_KERNELS
#include "sluice/cpu_adam/gpu_step.hpp"
#include "squared_norm.hpp"
#endif

namespace sluice::train {

namespace {

namespace pluggable = torch::cuda::CUDAPluggableAllocator;

// LibTorch keeps its allocator for the life of the process; the allocator's memory source changes.
// Thread-safe.
class Tensors {
 public:
  void use(std::shared_ptr<const GpuMemory> memory) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(memory_ == nullptr || memory == nullptr,
                "another Engine or run has LibTorch's tensors on GPUs in its budget: one at a time "
                "in a process");
    memory_ = std::move(memory);
  }

  void* allocate(std::size_t size_bytes) {
    if (size_bytes == 0) return nullptr;
    std::shared_ptr<const GpuMemory> memory;
    {
      const std::lock_guard lock(mutex_);
      memory = memory_;
    }
    TORCH_CHECK(memory != nullptr, "a tensor on a GPU outside of a run");
    void* block = memory->allocate(size_bytes);
    const std::lock_guard lock(mutex_);
    owners_.emplace(block, std::move(memory));
    return block;
  }

  void free(void* block, std::size_t size_bytes) {
    if (block == nullptr) return;
    std::shared_ptr<const GpuMemory> owner;
    {
      const std::lock_guard lock(mutex_);
      const auto found = owners_.find(block);
      owner = std::move(found->second);
      owners_.erase(found);
    }
    owner->free(block, size_bytes);
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<const GpuMemory> memory_;  // shared with its tensors
  std::unordered_map<void*, std::shared_ptr<const GpuMemory>> owners_;
};

Tensors& installed_tensors() {
  static Tensors* tensors = [] {
    auto* made = new Tensors;
    TORCH_CHECK(!c10::cuda::CUDACachingAllocator::get()->initialized(),
                "this program has used a GPU through LibTorch before: make the Engine, and call "
                "initialize(), first");
    pluggable::changeCurrentAllocator(pluggable::createCustomAllocator(
        [made](std::size_t size_bytes, int, cudaStream_t) { return made->allocate(size_bytes); },
        [made](void* block, std::size_t size_bytes, int, cudaStream_t) {
          made->free(block, size_bytes);
        }));
    return made;
  }();
  return *tensors;
}

class Compute final : public GpuCompute {
 public:
  // In the budget, before LibTorch makes an allocator of its own.
  Compute(int index, TensorMemory tensors)
      : tensors_(tensors == TensorMemory::budget ? &installed_tensors() : nullptr),
        stream_(make_current(static_cast<c10::DeviceIndex>(index), tensors)) {}
  ~Compute() override {
    if (tensors_ == nullptr) return;
    // LibTorch keeps workspaces for the next product on this stream. The run's memory ends here, so
    // they must go.
    at::cuda::clearCublasWorkspaces();
    tensors_->use(nullptr);
  }

  void* stream() const override { return stream_.stream(); }
  bool is_current() const override {
    return c10::cuda::getCurrentCUDAStream(stream_.device_index()) == stream_;
  }
  void use_memory(std::shared_ptr<const GpuMemory> memory) override {
    TORCH_CHECK(tensors_ != nullptr, "LibTorch's tensors have LibTorch's memory");
    tensors_->use(std::move(memory));
  }
  void run_on_stream(const std::function<void()>& work) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    work();
  }
  void synchronize() override { stream_.synchronize(); }
#if SLUICE_HAVE_GPU_KERNELS
  bool has_kernels() const override {
    return at::cuda::getDeviceProperties(stream_.device_index())->major >= cpu_adam::kLeastGpuMajor;
  }
  void issue_squared_norm(const void* gradient, std::uint64_t count, DType dtype,
                          double* result) override {
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    const at::Tensor partials =
        at::empty({kSquaredNormBlocks}, at::TensorOptions().dtype(at::kDouble).device(at::kCUDA));
    C10_CUDA_CHECK(launch_squared_norm(gradient, count, dtype, partials.data_ptr<double>(), result,
                                       stream_.stream()));
  }
  void issue_step(const cpu_adam::StepArguments& step, std::uint32_t* non_finite,
                  void* step_stream) override {
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    C10_CUDA_CHECK(static_cast<cudaError_t>(
        cpu_adam::launch_step(step, non_finite, static_cast<cudaStream_t>(step_stream))));
  }
#else
  bool has_kernels() const override {
    return false;
  }
  void issue_squared_norm(const void*, std::uint64_t, DType, double*) override {
    TORCH_CHECK(false, "built without kernels");
  }
  void issue_step(const cpu_adam::StepArguments&, std::uint32_t*, void*) override {
    TORCH_CHECK(false, "built without kernels");
  }
#endif

 private:
  // In the budget, the stream of every thread that was told of no other: so a tensor that a thread
  // of the user's copies to the GPU, and memory that it frees, are ordered with the computation.
  static c10::cuda::CUDAStream make_current(c10::DeviceIndex index, TensorMemory tensors) {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::set_device(index);
    if (tensors == TensorMemory::libtorch) return c10::cuda::getCurrentCUDAStream(index);
    const c10::cuda::CUDAStream stream = c10::cuda::getDefaultCUDAStream(index);
    c10::cuda::setCurrentCUDAStream(stream);
    return stream;
  }

  Tensors* const tensors_;  // null: LibTorch's own memory
  const c10::cuda::CUDAStream stream_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void sluice_make_gpu_compute(
    int index, TensorMemory tensors, std::unique_ptr<GpuCompute>* made) {
  *made = std::make_unique<Compute>(index, tensors);
}

}  // namespace sluice::train
