#include "sluice/nvme/drive_rates.hpp"

#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <exception>
#include <thread>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/load.hpp"

namespace sluice::nvme {

namespace {

constexpr std::uint64_t kFileBytes = 64 * kMiB;
constexpr std::uint64_t kLeastFileBytes = 8 * kMiB;  // less says nothing of a drive
constexpr unsigned kDepth = 16;
constexpr double kSeconds = 1;

// A file that has a descriptor and no name.
SwapFile make_nameless(const std::string& directory, std::uint64_t size_bytes) {
  const std::string path = directory + "/rate.sluice." + std::to_string(::getpid());
  SwapFile file(path, OpenMode::create, DirectIo::automatic);
  try {
    file.allocate(size_bytes);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  SLUICE_SYSCALL(::unlink(path.c_str()), path);
  return file;
}

// The same of all drives, and at most a quarter of what the fullest of them has free.
std::uint64_t file_bytes_for(std::span<const std::string> directories) {
  std::uint64_t size_bytes = kFileBytes;
  for (const std::string& directory : directories)
    size_bytes = std::min(size_bytes, free_disk_bytes(directory) / 4);
  return align_down(size_bytes, kMiB);
}

class Drive {
 public:
  Drive(const std::string& directory, std::uint64_t size_bytes, BackendKind backend,
        unsigned io_threads)
      : size_bytes_(size_bytes),
        engine_(make_backend(backend, kDepth, io_threads).backend, {.depth = kDepth}),
        file_(make_nameless(directory, size_bytes)) {}

  // Extents that were only allocated read as zeros without the drive.
  void fill() {
    LoadOptions options;
    options.pattern = LoadPattern::write;
    options.size_bytes = size_bytes_;
    Load load(engine_, file_, options);
    for (std::uint64_t written = 0; written < size_bytes_;) written += load.run(0).written_bytes;
  }

  double measure() {
    LoadOptions options;
    options.pattern = LoadPattern::mixed;
    options.size_bytes = size_bytes_;
    return Load(engine_, file_, options).run(kSeconds).bytes_per_second();
  }

 private:
  const std::uint64_t size_bytes_;
  IoEngine engine_;
  SwapFile file_;
};

}  // namespace

std::vector<double> measure_drive_rates(std::span<const std::string> directories,
                                        BackendKind backend, unsigned io_threads) {
  const std::uint64_t size_bytes = file_bytes_for(directories);
  if (size_bytes < kLeastFileBytes) return {};
  std::vector<double> rates(directories.size());
  std::vector<std::exception_ptr> errors(directories.size());
  // The rate that counts is the one beside the others.
  std::barrier all_filled(static_cast<std::ptrdiff_t>(directories.size()));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    threads.emplace_back([&, i] {
      bool waits = true;
      try {
        Drive drive(directories[i], size_bytes, backend, io_threads);
        drive.fill();
        waits = false;
        all_filled.arrive_and_wait();
        rates[i] = drive.measure();
      } catch (...) {
        errors[i] = std::current_exception();
        if (waits) all_filled.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return rates;
}

std::optional<std::size_t> slow_drive(std::span<const IoCounters> drives) {
  const auto busy = [](const IoCounters& drive) {
    return std::max(drive.read_busy_seconds, drive.write_busy_seconds);
  };
  if (drives.size() < 2) return std::nullopt;
  std::size_t slowest = 0;
  for (std::size_t i = 1; i < drives.size(); ++i) {
    if (busy(drives[i]) > busy(drives[slowest])) slowest = i;
  }
  for (std::size_t i = 0; i < drives.size(); ++i) {
    const double others = busy(drives[i]);
    if (i != slowest && busy(drives[slowest]) <= std::max(1.5 * others, others + 1))
      return std::nullopt;
  }
  return slowest;
}

}  // namespace sluice::nvme
