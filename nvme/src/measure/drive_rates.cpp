#include "sluice/nvme/drive_rates.hpp"

#include <algorithm>
#include <memory>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/nvme/load.hpp"

namespace sluice::nvme {

namespace {

constexpr std::uint64_t kLeastFileBytes = 8 * kMiB;  // a smaller file does not measure a drive
constexpr std::uint64_t kFreePart = 4;               // at most a quarter of the free space is used

// One size for all drives, which the fullest drive has room for.
std::uint64_t file_bytes_for(std::span<const std::string> directories, std::uint64_t most_bytes) {
  std::uint64_t size_bytes = most_bytes;
  for (const std::string& directory : directories)
    size_bytes = std::min(size_bytes, free_disk_bytes(directory) / kFreePart);
  return align_down(size_bytes, kMiB);
}

class Drive {
 public:
  Drive(const std::string& directory, std::uint64_t size_bytes, const DriveRatesOptions& options)
      : size_bytes_(size_bytes),
        seconds_(options.seconds),
        engine_(make_backend(options.backend, options.engine.depth, options.io_threads).backend,
                options.engine),
        file_(make_nameless_file(directory, size_bytes)) {}

  // Writes the file: reads of extents that were only allocated do not touch the drive.
  Ticket begin_fill() {
    return worker_.begin([this] {
      Load load(engine_, file_, load_of(LoadPattern::write));
      for (std::uint64_t written = 0; written < size_bytes_;) written += load.run(0).written_bytes;
    });
  }
  Ticket begin_measure(LoadPattern pattern, double& rate) {
    return worker_.begin([this, pattern, &rate] {
      rate = Load(engine_, file_, load_of(pattern)).run(seconds_).bytes_per_second();
    });
  }

 private:
  LoadOptions load_of(LoadPattern pattern) const {
    LoadOptions options;
    options.pattern = pattern;
    options.size_bytes = size_bytes_;
    return options;
  }

  const std::uint64_t size_bytes_;
  const double seconds_;
  IoEngine engine_;
  SwapFile file_;
  Worker worker_{"sluice-rate"};
};

}  // namespace

std::vector<std::vector<double>> measure_drive_rates(std::span<const std::string> directories,
                                                     std::span<const LoadPattern> patterns,
                                                     const DriveRatesOptions& options) {
  const std::uint64_t block = options.engine.block_bytes;
  const std::uint64_t size_bytes =
      align_down(file_bytes_for(directories, options.file_bytes), block);
  if (size_bytes < kLeastFileBytes) return {};
  std::vector<std::unique_ptr<Drive>> drives;
  drives.reserve(directories.size());
  for (const std::string& directory : directories)
    drives.push_back(std::make_unique<Drive>(directory, size_bytes, options));
  std::vector<Ticket> filled;
  filled.reserve(drives.size());
  for (const auto& drive : drives) filled.push_back(drive->begin_fill());
  finish_all(filled);
  std::vector<std::vector<double>> rates;
  for (const LoadPattern pattern : patterns) {
    // All drives run at once: the rate beside the others counts.
    std::vector<double>& of_drives = rates.emplace_back(drives.size());
    std::vector<Ticket> measured;
    for (std::size_t i = 0; i < drives.size(); ++i)
      measured.push_back(drives[i]->begin_measure(pattern, of_drives[i]));
    finish_all(measured);
  }
  return rates;
}

void check_drive_rates(std::span<const std::string> directories, std::uint64_t block_bytes) {
  // Rounded as the size of the measured file is.
  const std::uint64_t file_bytes = align_up(align_up(kLeastFileBytes, block_bytes), kMiB);
  for (const std::string& directory : directories) {
    const std::uint64_t free_bytes = free_disk_bytes(directory);
    if (free_bytes < kFreePart * file_bytes)
      throw DoesNotFit(directory + ": " + format_bytes(free_bytes) +
                       " are free, too little to measure its drive: that needs " +
                       format_bytes(kFreePart * file_bytes));
    make_nameless_file(directory, file_bytes);
  }
}

std::optional<std::size_t> slow_drive(std::span<const double> busy_seconds) {
  if (busy_seconds.size() < 2) return std::nullopt;
  const auto slowest = std::max_element(busy_seconds.begin(), busy_seconds.end());
  for (auto other = busy_seconds.begin(); other != busy_seconds.end(); ++other) {
    if (other != slowest && *slowest <= std::max(1.5 * *other, *other + 1)) return std::nullopt;
  }
  return static_cast<std::size_t>(slowest - busy_seconds.begin());
}

}  // namespace sluice::nvme
