#pragma once
// The device that computes: the GPU that the configuration asks for and the machine has, or the
// host. Thread-safe: free functions without state. Not installed.

#include <string>

#include "sluice/config/train_config.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/plan/machine.hpp"

namespace sluice::plan {

// Why the host computes, where the configuration leaves that open; empty: a GPU does. Throws
// InvalidArgument, with the reason, where a GPU is named and missing, and where GPUs fail: a run
// that took the host then would be slow for a reason that nobody reads.
std::string why_on_host(const config::ComputeDevice& asked, const offload::CudaDevices& found);

// Sets `facts.device`, and the lines about it. Throws as why_on_host() does, and CudaError.
void choose_device(MachineFacts& facts, const config::ComputeDevice& asked);

}  // namespace sluice::plan
