#pragma once
// The outcome of `sluice nvme bench`, and the page about it. Thread-safe: values and free functions
// without state.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command/arguments.hpp"
#include "nvme/bench/fio.hpp"
#include "sluice/nvme/load.hpp"

namespace sluice::cli {

// Rounds of three slices: ours, fio's, and fio's again; in every other round the order is reversed.
struct FioComparison {
  static constexpr std::size_t kLeastRounds = 6;  // fewer say nothing about their spread

  std::vector<double> ratios;    // ours to fio's, by round
  std::vector<double> controls;  // fio's second slice to its first: the drive's own changes
  FioSlice fio;                  // sum of fio's first slices
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
  std::uint64_t size_bytes = 0;  // the measured part of the file
  std::string fio_line;          // empty without fio
  nvme::LoadResult result;
  std::vector<BenchSample> samples;
  std::optional<FioComparison> fio;
};

// The load and its settings, in one line.
std::string bench_title(const NvmeBenchArguments& arguments, const BenchOutcome& outcome);

// A table of the rounds: a head, ours to fio, and the control. Without a spread below kLeastRounds.
std::vector<std::vector<std::string>> comparison_rows(const FioComparison& comparison);

// A self-contained page: the throughput over time, the latencies, the settings.
std::string bench_page(const NvmeBenchArguments& arguments,
                       const std::vector<BenchOutcome>& outcomes, const std::string& command_line);

}  // namespace sluice::cli
