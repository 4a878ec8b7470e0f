#pragma once
// Facts about the machine that a plan is made for: cores, memory, limits, drives, and the device
// that computes. Not here: the budgets, which the configuration sets within these facts. No
// LibTorch. Thread-safe: values and free functions without state.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/memory_limits.hpp"

namespace sluice::plan {

// One GPU.
struct GpuFacts {
  int index = 0;  // among the GPUs that CUDA_VISIBLE_DEVICES leaves
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  // The driver maps the memory in pages of this size (find_cuda_pages()). 0: the memory is one
  // block, and gaps between blocks are lost.
  std::uint64_t page_bytes = 0;
  std::string bus_id = {};  // "0000:1b:00.0", one for each GPU of a host
  int ranks = 1;            // of the run that compute on it; they divide free_bytes
};
// Returns "cuda:0 (NVIDIA H200)", for example.
std::string name_of(const GpuFacts& gpu);

// The device that computes.
struct DeviceFacts {
  // The CPU can read and write the device's memory. True for the host device, false for a GPU.
  bool host_addressable = true;
  std::optional<GpuFacts> gpu;  // empty: the host device computes
  // Device memory that one unit of each kind needs for a micro-batch, as measured. Empty: the
  // planner uses a formula.
  std::optional<models::UnitWorkspaces> workspaces;
  // Ranks exchange the memory of their GPUs by NCCL. Otherwise it goes through host memory.
  bool has_nccl = false;
  // The device can compute optimizer steps. False for a GPU of a build without nvcc, and for one
  // before compute capability 8.0.
  bool has_update_kernels = true;
};

// Where ranks plan together with the least of their numbers: whose each is, "rank 1 on host h2".
// Empty: of this process.
struct PoorestRanks {
  std::string memory;
  std::string memlock;
  std::string address_space;
  std::string gpu;  // its free memory
  // For each of MachineFacts::free_disk_bytes, "/drive/rank1-of-2 of rank 1 on host h2".
  std::vector<std::string> disks;
};

// The planner's view of the machine. probe_machine() fills it in; tests may write it by hand.
struct MachineFacts {
  std::uint64_t total_memory_bytes = 0;
  std::uint64_t available_memory_bytes = 0;  // see available_memory_bytes()
  std::optional<GroupMemory> group_memory;   // empty: no control group has a limit
  std::uint64_t memlock_bytes = 0;           // see lockable_bytes()
  std::uint64_t address_space_bytes =
      std::numeric_limits<std::uint64_t>::max();  // RLIMIT_AS (ulimit -v)
  int cores = 1;                                  // cores that this process may use
  DeviceFacts device;
  std::string device_choice;  // the reason for the device; empty when the configuration names it
  std::string memory_choice;  // why a GPU's memory is not mapped in pages; else empty
  std::string ranks_choice;   // how ranks exchange the memory of their GPUs; empty: no such ranks
  // Free bytes of the file system below each directory that the configuration names, with the bytes
  // of files there that the run replaces. A missing directory has no entry: the trainer reports it,
  // with exit code 4.
  std::vector<std::pair<std::string, std::uint64_t>> free_disk_bytes;
  // Bytes of the files in the checkpoint directory, which its free bytes above contain.
  std::uint64_t checkpoint_bytes = 0;
  bool writes_checkpoints = true;  // false: the run writes none, and needs no room for any
  // The file system's id for each of these directories.
  std::vector<std::pair<std::string, std::uint64_t>> file_systems;
  PoorestRanks poorest;
};

// Address space kept for what the program maps beside its budgets: LibTorch's libraries, thread
// stacks and the heap. 1 GiB; 0.6 GB were measured.
inline constexpr std::uint64_t kProgramAddressSpaceBytes = std::uint64_t{1} << 30U;

// Bytes of memory that this process can still get: MemAvailable of /proc/meminfo, limited by its
// control groups.
std::uint64_t available_memory_bytes();

// Chooses the device by the configuration and reads the machine's facts. Throws InvalidArgument
// when the configuration names a missing GPU, and CudaError when a GPU does not answer.
MachineFacts probe_machine(const config::TrainConfig& config);

}  // namespace sluice::plan
