#pragma once
// What the parts of `sluice nvme bench` share: the request, one path that is measured, and what
// came out. Thread-compatible: callers synchronise.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load.hpp"

namespace sluice::cli {

// One path, ready to be measured. Its engine is its own, so several drives work at once.
class BenchTarget {
 public:
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  // Opens the file, or makes the bench file in a directory and fills it, with `progress`. Throws
  // InvalidArgument, IoError.
  BenchTarget(const NvmeBenchArguments& arguments, const std::string& path,
              const Progress& progress);

  const std::string& path() const { return path_; }  // as given
  const std::string& file_path() const { return file_->path(); }
  std::uint64_t size_bytes() const { return size_bytes_; }
  const std::string& backend_choice() const { return why_not_better_; }
  const nvme::SwapFile& file() const { return *file_; }
  nvme::IoEngine& engine() { return *engine_; }
  nvme::Load& load() { return *load_; }
  // Removes the bench file of a directory; a file that was there before stays.
  void clean();

 private:
  const std::string path_;
  bool own_file_ = false;
  std::uint64_t size_bytes_ = 0;
  std::string why_not_better_;
  std::unique_ptr<nvme::IoEngine> engine_;
  std::unique_ptr<nvme::SwapFile> file_;
  std::unique_ptr<nvme::Load> load_;
};

// What fio did on the same file with the same settings in one slice.
struct FioSlice {
  double seconds = 0;
  double bytes = 0;
  double requests = 0;
  double cpu_seconds = 0;
  double bytes_per_second() const { return seconds > 0 ? bytes / seconds : 0; }
};
// Blocks until fio has ended. Throws Error when it is not installed or fails, with what it said.
FioSlice run_fio(const NvmeBenchArguments& arguments, const BenchTarget& target,
                 std::string_view backend, double seconds);

// The median of paired slices of about a second, alternating, the order swapped at every pair.
struct FioComparison {
  std::vector<double> ratios;  // ours to fio's, by pair
  FioSlice fio;                // all slices together
};

struct BenchSample {
  double seconds = 0;  // since the start
  double bytes_per_second = 0;
};
struct BenchOutcome {
  std::string path;
  std::string backend;
  std::string why_buffered;
  nvme::LoadResult result;
  std::vector<BenchSample> samples;
  std::optional<FioComparison> fio;
};

// A self-contained page: the throughput over time, the latencies, the settings.
std::string bench_page(const NvmeBenchArguments& arguments,
                       const std::vector<BenchOutcome>& outcomes, const std::string& command_line);

// The value below which `share` of them lie, interpolated; 0 when there are none.
double quantile_of(std::vector<double> values, double share);

}  // namespace sluice::cli
