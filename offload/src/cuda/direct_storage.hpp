#pragma once
// probe_direct_storage() over any CufileApi: tests pass one of their own. Not installed.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "cuda/cuda_device.hpp"
#include "cuda/cufile_api.hpp"
#include "sluice/offload/direct_storage.hpp"

namespace sluice::offload::cuda {

using Clock = std::function<std::chrono::steady_clock::time_point()>;

// cuFile's library. Null where it cannot be loaded: then `why_not` says why.
struct LoadedCufile {
  std::shared_ptr<CufileApi> files;  // shared with the readers that are made
  std::string why_not;
};

// From the drive to the device, both ways: the directories of the file, and what a Mover needs.
struct StorageRoute {
  Device& device;  // only a GpuDevice can be read into directly
  nvme::IoEngine& io;
  MemoryPool& staging;
  const MoverOptions& mover;
  const SwapPlace& place;
};

DirectStorage probe(const LoadedCufile& cufile, const StorageRoute& route,
                    const DirectStorageOptions& options,
                    const Clock& now = std::chrono::steady_clock::now);

// Sets the line, and drops the reader unless it is used, by what was measured.
void decide(DirectStorage& measured);

}  // namespace sluice::offload::cuda
