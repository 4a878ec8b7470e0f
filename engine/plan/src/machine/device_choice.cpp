#include "machine/device_choice.hpp"

#include "sluice/base/error.hpp"
#include "sluice/cpu_adam/gpu_step.hpp"

namespace sluice::plan {

namespace {

#if SLUICE_TRAINS_ON_GPUS
constexpr bool kTrainsOnGpus = true;
#else
constexpr bool kTrainsOnGpus = false;
#endif
#if SLUICE_HAVE_GPU_KERNELS
constexpr bool kHasGpuKernels = true;
#else
constexpr bool kHasGpuKernels = false;
#endif

}  // namespace

std::string why_on_host(const config::ComputeDevice& asked, const offload::CudaDevices& found) {
  std::string why_not = found.why_missing(asked.index.value_or(0));
  const std::string refused =
      "\"sluice\": {\"device\": \"" + config::name_of(asked) + "\"}: " + why_not;
  SLUICE_CHECK(why_not.empty() || asked.kind != config::ComputeDevice::Kind::cuda, refused);
  SLUICE_CHECK(!found.fails,
               refused + "; mend that, or train on the CPU with \"device\": \"host\"");
  return why_not;
}

void choose_device(MachineFacts& facts, const config::ComputeDevice& asked) {
  using Kind = config::ComputeDevice::Kind;
  if (asked.kind == Kind::host) return;
  const offload::CudaDevices found =
      kTrainsOnGpus ? offload::find_cuda_devices()
                    : offload::CudaDevices{{}, "this build's LibTorch has no part for GPUs"};
  const std::string why_not = why_on_host(asked, found);
  if (!why_not.empty()) {
    facts.device_choice = "device: the host (auto): " + why_not;
    return;
  }
  const int gpu_index = asked.index.value_or(0);
  const offload::CudaDeviceFacts& gpu = found.devices[static_cast<std::size_t>(gpu_index)];
  facts.device.gpu = {.index = gpu_index,
                      .name = gpu.name,
                      .total_bytes = gpu.total_bytes,
                      .free_bytes = offload::cuda_free_bytes(gpu_index),
                      .bus_id = gpu.bus_id};
  facts.device.host_addressable = false;
  facts.device.has_update_kernels = kHasGpuKernels && gpu.major >= cpu_adam::kLeastGpuMajor;
  const offload::CudaPages pages = offload::find_cuda_pages(gpu_index);
  facts.device.gpu->page_bytes = pages.page_bytes;
  if (pages.page_bytes == 0) {
    facts.memory_choice =
        "the GPU's memory is one block, with room for gaps: it is not mapped in pages, because " +
        pages.why_not;
  }
  if (asked.kind == Kind::automatic)
    facts.device_choice = "device: " + name_of(*facts.device.gpu) +
                          (asked.index ? " (auto)" : ", the first GPU (auto)");
}

}  // namespace sluice::plan
