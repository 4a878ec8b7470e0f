#pragma once
// The command line as checked values, one struct for each command. This header knows nothing of the
// work of the commands.
// Thread-safe: values and free functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load.hpp"
#include "sluice/train/library.hpp"

namespace sluice::cli {

// A text to print, without a command: a help text or the version.
struct ShowText {
  std::string text;
};
struct TrainArguments {
  train::TrainRequest request;
};
// Hardware of a plan for many ranks. Rates are per second; 0: not given.
struct RanksArguments {
  std::vector<std::uint64_t> ranks;  // empty: the plan of one run
  std::uint64_t parameters = 0;      // 0: those of the model file
  std::uint64_t ranks_per_host = 8;
  std::uint64_t drives = 0;             // of a host
  double network_bytes = 0;             // of a rank, in each direction
  double drive_bytes = 0;               // of a drive, reads and writes added
  double link_bytes = 0;                // of a rank, between host and device
  double flops = 0;                     // of a rank
  double updates = 0;                   // elements of a host
  std::uint64_t host_memory_bytes = 0;  // of a host
  std::uint64_t gpu_memory_bytes = 0;   // of a rank
};
// `request` is the run to plan; its data_paths may be empty. With `ranks`, its config_path and
// model_path may be empty too.
struct PlanArguments {
  train::TrainRequest request;
  RanksArguments ranks;
  bool probe = false;    // measure the machine first
  bool largest = false;  // plan the largest number of blocks that fits
};
struct GenerateArguments {
  train::GenerateRequest request;
};
struct ExportArguments {
  std::string run_directory;
  std::string out_path;
  DType dtype = DType::fp32;
  std::uint64_t most_file_bytes = 0;  // 0: one file
};
struct ReportArguments {
  std::string directory;
  std::string out_path;    // empty: report.html in the directory
  std::string trace_path;  // empty: trace.json in the directory, if present
  std::optional<std::int64_t> step;
};
struct DoctorArguments {};
struct ConfigCheckArguments {
  std::vector<std::string> paths;  // configurations, each followed by files over it
  std::vector<config::Setting> settings;
};
struct ConfigResolveArguments {
  std::string path;
  std::vector<std::string> tuned_paths;
  std::vector<config::Setting> settings;
};
struct ConfigRatesArguments {
  std::string path;
  std::optional<std::int64_t> steps;  // absent: as many as the schedule has
  std::vector<config::Setting> settings;
};
struct ConfigExplainArguments {
  std::string key;
};
struct ConfigKeysArguments {};
struct ConfigSchemaArguments {};
struct ConfigConvertArguments {
  std::string path;
  std::string out_path;  // empty: standard output
};
// Arguments that nvme bench and nvme tune share.
struct DriveArguments {
  std::vector<std::string> paths;           // directories, or existing regular files
  std::optional<std::uint64_t> size_bytes;  // absent: 1 GiB in a directory, else the file's
  nvme::BackendKind backend = nvme::BackendKind::automatic;
  unsigned io_threads = 8;  // for the threads backend
  bool overwrite = false;   // existing files may be written to
  bool clean = false;       // the bench files are removed in the end
  std::string html_path;
};
struct NvmeBenchArguments : DriveArguments {
  nvme::LoadPattern pattern = nvme::LoadPattern::read;
  nvme::LoadAccess access = nvme::LoadAccess::sequential;
  std::uint32_t block_bytes = 256U << 10U;
  unsigned depth = 32;
  std::optional<unsigned> reads_per_write;  // mixed and swap; absent: the engine's default
  std::optional<unsigned> tensors;          // swap; absent: tiles that fill the file
  double seconds = 5;
  bool fio = false;
  double slice_seconds = 1;  // with fio: length of one slice
  std::optional<int> gpu;    // the ways to its memory are measured; absent: host memory
};
struct NvmeTuneArguments : DriveArguments {
  std::string out_path;  // receives the tuned part of a configuration
  double seconds = 45;
};
struct NvmeVerifyArguments {
  std::string directory;
};
struct NvmeCleanArguments {
  std::string directory;
  bool committed = false;
  bool dry_run = false;
};

// Who starts the ranks. automatic: mpirun for `sluice train`, else this program itself on one host
// and torchrun on several.
enum class LaunchHow { automatic, torchrun, mpirun, srun };
// Empty texts and 0: not given.
struct LaunchArguments {
  std::vector<std::string> program;  // with its arguments; not empty
  unsigned num_gpus = 0;             // ranks on each host
  unsigned num_nodes = 0;
  std::string hostfile;
  std::string include;
  std::string exclude;
  std::string master_address;
  unsigned master_port = 0;
  LaunchHow how = LaunchHow::automatic;
  bool run = false;
  std::string log_directory;
  bool bind_cores = false;
  std::string core_list;
  bool is_module = false;
  bool no_python = false;
  double grace_seconds = 60;
  std::string as_rank;  // this process is started by mpirun, around a rank (launch/mpi_rank.hpp)
};

struct Invocation {
  std::variant<ShowText, TrainArguments, PlanArguments, GenerateArguments, ExportArguments,
               ReportArguments, DoctorArguments, ConfigCheckArguments, ConfigKeysArguments,
               ConfigResolveArguments, ConfigRatesArguments, ConfigExplainArguments,
               ConfigSchemaArguments, ConfigConvertArguments, NvmeBenchArguments, NvmeTuneArguments,
               NvmeVerifyArguments, NvmeCleanArguments, LaunchArguments>
      command;
  bool json = false;
};

}  // namespace sluice::cli
