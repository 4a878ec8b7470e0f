#pragma once
// GPUDirect Storage: a drive writes into a GPU's memory by DMA, through cuFile, whose library is
// loaded at the first use. Support depends on the machine's GPU, kernel modules, file system and
// drive; the gain depends on how these are wired. So the probe measures cuFile and host tiles side
// by side, and uses cuFile when it is faster and its bytes are right.
//
// cuFile has a compatibility mode, which reads into host memory and copies from there. The probe
// refuses this mode at first, so a read that works is direct. If no direct read works, the probe
// measures cuFile in compatibility mode; it uses that mode only if it is faster than host tiles,
// and the line says that it is not direct.
//
// cuFile's own configuration (/etc/cufile.json, CUFILE_ENV_PATH_JSON) stays as it is. cuFile logs
// to ./cufile.log unless CUFILE_LOGFILE_PATH names another file.
//
// One probe at a time in a process: cuFile's mode belongs to the library. Callers synchronise.

#include <cstdint>
#include <memory>
#include <string>

#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/direct_reader.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/offload/swap_place.hpp"

namespace sluice::offload {

struct DirectStorageOptions {
  std::uint64_t file_bytes = 64U << 20U;  // a multiple of 1 MiB
  int rounds = 5;                         // at least 1; one more round before them is not counted
};

struct DirectStorage {
  // Medians; 0: not measured.
  double cufile_bytes_per_second = 0;
  double staged_bytes_per_second = 0;  // through host tiles, as a Mover does
  bool bytes_right = true;             // false: a read through cuFile returned other bytes
  // Empty, or why cuFile does not read directly.
  std::string why_not_direct;
  // For people: which way is used, and why not the other.
  std::string line;
  // Null unless cuFile is used. The device and the files it reads outlive the reader. One reader at
  // a time in a process: the mode belongs to the library.
  std::unique_ptr<DirectReader> reader;
};

// Writes a file in `place`, reads it into device memory by cuFile and by host tiles in turn, and
// removes it. Blocks. Takes `options.file_bytes` of device memory, and of `staging` as much as a
// Mover does; gives both back. The caller holds the directories (DirectoryLock, SwapStore). Throws
// InvalidArgument on options out of range; a feature that the machine lacks is in the result.
DirectStorage probe_direct_storage(Device& device, nvme::IoEngine& io, MemoryPool& staging,
                                   const MoverOptions& mover, const SwapPlace& place,
                                   const DirectStorageOptions& options = {});

}  // namespace sluice::offload
