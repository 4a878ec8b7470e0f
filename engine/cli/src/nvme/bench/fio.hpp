#pragma once
// fio as the peer of `sluice nvme bench --fio`: the same file, the same settings, one slice at a
// time. Thread-compatible: callers synchronise.

#include <string>
#include <string_view>

#include "command/arguments.hpp"
#include "nvme/bench/bench_target.hpp"

namespace sluice::cli {

// Result of one slice of fio, on the same file with the same settings.
struct FioSlice {
  double seconds = 0;
  double bytes = 0;
  double requests = 0;
  double cpu_seconds = 0;
  double bytes_per_second() const { return seconds > 0 ? bytes / seconds : 0; }
  void add(const FioSlice& other);
};
// The call of fio that run_fio makes, as a line for a shell.
std::string fio_line(const NvmeBenchArguments& arguments, const BenchTarget& target,
                     std::string_view backend);
// Throws InvalidArgument when fio is not installed.
void require_fio();
// Runs one slice; blocks until fio has ended. Throws InvalidArgument when fio is not installed, and
// Error with fio's output when fio fails.
FioSlice run_fio(const NvmeBenchArguments& arguments, const BenchTarget& target,
                 std::string_view backend);

}  // namespace sluice::cli
