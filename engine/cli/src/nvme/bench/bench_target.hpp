#pragma once
// One path that `sluice nvme bench` measures, with the load that the arguments ask for.
// Thread-compatible: callers synchronise.

#include <cstdint>
#include <memory>
#include <string>

#include "command/arguments.hpp"
#include "nvme/drive_file.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load.hpp"

namespace sluice::cli {

DriveFileOptions drive_options(const NvmeBenchArguments& arguments);
// Checks a load over `size_bytes`; called before any file is made. Throws InvalidArgument when the
// settings do not fit together or to the size. Throws OutOfMemory when the load needs more memory
// than the machine has.
void check_load(const NvmeBenchArguments& arguments, std::uint64_t size_bytes);

// Whether the pattern both reads and writes, so that their order matters.
bool has_order(nvme::LoadPattern pattern);
unsigned reads_per_write(const NvmeBenchArguments& arguments);

// CPU time is counted for the whole process. When several paths are measured at the same time, only
// their sum has a known CPU time. With fio the paths are measured one after the other.
enum class CpuTime { known, of_all };
CpuTime cpu_time_of(const NvmeBenchArguments& arguments);

// One path, ready to be measured. Each target has its own engine, so several drives work at once.
class BenchTarget {
 public:
  // Throws InvalidArgument, IoError.
  BenchTarget(const NvmeBenchArguments& arguments, DriveFile drive);

  const std::string& path() const { return drive_.path(); }
  const std::string& file_path() const { return drive_.file().path(); }
  std::uint64_t size_bytes() const { return drive_.size_bytes(); }
  const std::string& backend_choice() const { return why_not_better_; }
  const nvme::SwapFile& file() const { return drive_.file(); }
  nvme::IoEngine& engine() { return *engine_; }
  nvme::Load& load() { return *load_; }
  void clean() { drive_.clean(); }

 private:
  DriveFile drive_;
  std::string why_not_better_;
  std::unique_ptr<nvme::IoEngine> engine_;
  std::unique_ptr<nvme::Load> load_;
};

}  // namespace sluice::cli
