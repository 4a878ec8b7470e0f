#pragma once
// The ways between a drive and the memory of a device, through host tiles as training uses them,
// measured in turn with the two links that they are made of: the drive alone, and copies between
// host and device alone.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_place.hpp"

namespace sluice::cli {

struct DevicePathOptions {
  std::uint64_t size_bytes = 256U << 20U;  // of one slice: a multiple of 1 MiB
  bool reads = true;                       // the ways to the device
  bool writes = false;                     // the ways to the drive
  double seconds = 5;                      // then the round under way is the last; at least 3
};

// One way. The bound of a way through both links is the slower link's rate in the same round.
struct DevicePath {
  std::string name;
  bool is_link = false;
  std::vector<double> rates = {};      // bytes a second, by round
  std::vector<double> of_bounds = {};  // rate over bound, by round; empty for a link
};

struct DevicePaths {
  std::vector<DevicePath> paths;
  std::string why_buffered;  // empty: files are read and written past the page cache
  bool bytes_right = true;   // what arrived is what was sent, each way once before the first round
};

// Measures on a scratch file in `place`, which is removed at the end. Takes size_bytes of the
// device's memory, and of `pinned`, from which the device copies, size_bytes and a Mover's tiles.
// `round_done` gets the number of rounds; measuring ends when it returns false. Blocks. Throws
// IoError, OutOfMemory, StorageError; Interrupted never.
DevicePaths measure_device_paths(offload::Device& device, nvme::IoEngine& io,
                                 offload::MemoryPool& pinned, const offload::SwapPlace& place,
                                 const DevicePathOptions& options,
                                 const std::function<bool(int rounds)>& round_done);

}  // namespace sluice::cli
