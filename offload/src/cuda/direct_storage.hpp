#pragma once
// The function of sluice/offload/direct_storage.hpp over any CufileApi, so that tests bring their
// own. Not installed.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "cuda/cuda_device.hpp"
#include "cuda/cufile_api.hpp"
#include "sluice/offload/direct_storage.hpp"

namespace sluice::offload::cuda {

using Clock = std::function<std::chrono::steady_clock::time_point()>;

// Only a GpuDevice can be read into. `files` is null where cuFile cannot be loaded, for
// `why_no_files`.
DirectStorage probe(std::shared_ptr<CufileApi> files, const std::string& why_no_files,
                    Device& device, nvme::IoEngine& io, MemoryPool& staging,
                    const MoverOptions& mover, const SwapPlace& place,
                    const DirectStorageOptions& options,
                    const Clock& now = std::chrono::steady_clock::now);

// Sets the line, and drops the reader unless it is used, by what was measured.
void decide(DirectStorage& measured);

}  // namespace sluice::offload::cuda
