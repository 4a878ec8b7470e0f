#pragma once
// What the parts of `sluice nvme bench` share: the request, one path that is measured, and what
// came out. Thread-compatible: callers synchronise.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "drive_file.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load.hpp"

namespace sluice::cli {

DriveFileOptions drive_options(const NvmeBenchArguments& arguments);
// Before any file is made: throws InvalidArgument when a load of so many bytes cannot be,
// OutOfMemory when it takes more memory than the machine has.
void check_load(const NvmeBenchArguments& arguments, std::uint64_t size_bytes);

// Whether reads and writes wait for each other, so that their order matters.
bool has_order(nvme::LoadPattern pattern);
unsigned reads_per_write(const NvmeBenchArguments& arguments);

// The processor's time is the process's: of several paths at once only the sum has one. With fio
// they are measured one after the other.
enum class CpuTime { known, of_all };
CpuTime cpu_time_of(const NvmeBenchArguments& arguments);

// One path, ready to be measured. Its engine is its own, so several drives work at once.
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

// What fio did on the same file with the same settings in one slice.
struct FioSlice {
  double seconds = 0;
  double bytes = 0;
  double requests = 0;
  double cpu_seconds = 0;
  double bytes_per_second() const { return seconds > 0 ? bytes / seconds : 0; }
  void add(const FioSlice& other);
};
// How run_fio calls fio, as a line for a shell.
std::string fio_line(const NvmeBenchArguments& arguments, const BenchTarget& target,
                     std::string_view backend);
// Blocks until fio has ended. Throws Error when it is not installed or fails, with what it said.
FioSlice run_fio(const NvmeBenchArguments& arguments, const BenchTarget& target,
                 std::string_view backend);

// Rounds of three slices: ours, fio's, and fio's again, or the other way round.
struct FioComparison {
  std::vector<double> ratios;    // ours to fio's, by round
  std::vector<double> controls;  // fio's second slice to its first: what the drive's moods do
  FioSlice fio;                  // the first slices together
  std::vector<double> rates;     // bytes per second of fio's first slices, by round
};

struct BenchSample {
  double seconds = 0;  // since the start
  double bytes_per_second = 0;
};
struct BenchOutcome {
  std::string path;
  std::string backend;
  std::string why_buffered;
  std::uint64_t size_bytes = 0;  // of the file, as measured on
  std::string fio_line;          // empty without fio
  nvme::LoadResult result;
  std::vector<BenchSample> samples;
  std::optional<FioComparison> fio;
};

// What was measured and with which settings, in a line.
std::string bench_title(const NvmeBenchArguments& arguments, const BenchOutcome& outcome);

// A self-contained page: the throughput over time, the latencies, the settings.
std::string bench_page(const NvmeBenchArguments& arguments,
                       const std::vector<BenchOutcome>& outcomes, const std::string& command_line);

}  // namespace sluice::cli
