#pragma once
// LibTorch on a GPU. Its CUDA half takes seconds to load and hundreds of MiB, so it is linked to a
// library of its own (src/gpu), which is loaded when a run computes on a GPU. Not installed.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "sluice/base/dtype.hpp"
#include "sluice/cpu_adam/step_arguments.hpp"

namespace sluice::train {

// Memory of the GPU, for LibTorch's tensors. Thread-safe. `allocate` may throw; blocks start at a
// multiple of 512 bytes.
struct GpuMemory {
  std::function<void*(std::size_t size_bytes)> allocate;
  std::function<void(void* block, std::size_t size_bytes)> free;
};

// Whose memory LibTorch's tensors on GPUs have.
enum class TensorMemory {
  budget,    // that of use_memory()
  libtorch,  // LibTorch's own: tensors were made before, and go on to be made after
};

// Confined to the thread that computes, except for issue_step(), and run_on_stream() and what it
// calls; tensors may free their memory on any thread.
class GpuCompute {
 public:
  virtual ~GpuCompute() = default;
  // The stream (a cudaStream_t) of the GPU work that the thread which made this object issues,
  // backward passes included.
  virtual void* stream() const = 0;
  // Whether LibTorch issues the calling thread's work to stream().
  virtual bool is_current() const = 0;
  // From now on LibTorch's tensors on GPUs take their memory from `memory`, and give it back there,
  // also after a later call. Null: making a tensor is an error. For TensorMemory::budget.
  virtual void use_memory(std::shared_ptr<const GpuMemory> memory) = 0;
  // Calls `work` on the calling thread, whatever it is; meanwhile LibTorch issues this thread's
  // work to stream(). Throws what `work` throws.
  virtual void run_on_stream(const std::function<void()>& work) = 0;
  // Waits for all work issued to the stream. Throws LibTorch's errors.
  virtual void synchronize() = 0;
  // False in a build without kernels of its own, where no nvcc was found, and on a GPU that they
  // are not compiled for (cpu_adam::kLeastGpuMajor).
  virtual bool has_kernels() const = 0;
  // Issues to the stream: *result = the sum of the squares of `gradient`, in fp64, both on the GPU.
  // Needs kernels.
  virtual void issue_squared_norm(const void* gradient, std::uint64_t count, DType dtype,
                                  double* result) = 0;
  // Issues a step of the optimizer to `step_stream` (a cudaStream_t of this GPU), all of whose
  // addresses are on the GPU, with the bits of cpu_adam on the host. *non_finite becomes 1 if the
  // step gives a non-finite value. Called by any thread. Needs kernels.
  virtual void issue_step(const cpu_adam::StepArguments& step, std::uint32_t* non_finite,
                          void* step_stream) = 0;
};

// GpuCompute::issue_step of a run's device, whatever it is.
using IssueStep = std::function<void(const cpu_adam::StepArguments& step, std::uint32_t* non_finite,
                                     void* step_stream)>;

// The library's one function: makes the GPU `index` the calling thread's. Throws LibTorch's errors.
// TensorMemory::budget: the stream is the default one; called once in a process, before LibTorch
// makes a tensor on a GPU. TensorMemory::libtorch: the stream is the thread's current one.
using MakeGpuCompute = void(int index, TensorMemory tensors, std::unique_ptr<GpuCompute>* made);
inline constexpr const char* kMakeGpuCompute = "sluice_make_gpu_compute";

// Loads the library. Throws InvalidArgument with the reason when it cannot be loaded.
std::unique_ptr<GpuCompute> load_gpu_compute(int index, TensorMemory tensors);

}  // namespace sluice::train
