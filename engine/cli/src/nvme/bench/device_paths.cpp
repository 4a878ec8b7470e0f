#include "nvme/bench/device_paths.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/offload/scratch_file.hpp"

namespace sluice::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFewestRounds = 3;
constexpr std::size_t kChunkBytes = kMiB;  // of comparing

// A file of known content, as much memory on the host and on the device, and the mover between.
// Confined to the thread that measures.
class Ways {
 public:
  Ways(offload::Device& device, nvme::IoEngine& io, offload::MemoryPool& pinned,
       const offload::SwapPlace& place, std::uint64_t size_bytes)
      : device_(device),
        io_(io),
        file_(place, "device-bench", size_bytes, nvme::DirectIo::automatic),
        range_(file_.take(size_bytes)),
        pattern_(kChunkBytes),
        host_(pinned.allocate(size_bytes, "measuring the drive's link")),
        on_device_(device.memory().allocate(size_bytes, "measuring the ways to the device")),
        mover_(device, &io, &pinned, {}) {
    for (const nvme::SwapFile& part : range_.file->parts()) {
      registrations_.push_back(io.register_file(part));
      if (why_buffered_.empty()) why_buffered_ = part.why_buffered();
    }
    fill(host_.bytes());
    host_to_drive();  // blocks that were never written would be read without the drive
    range_.file->sync_data();
    host_to_device();
  }

  const std::string& why_buffered() const { return why_buffered_; }

  void drive_to_host() {
    io_.begin_read(*range_.file, range_.offset_bytes, host_.bytes()).finish();
  }
  void host_to_drive() {
    io_.begin_write(*range_.file, range_.offset_bytes, host_.bytes()).finish();
  }
  void host_to_device() { device_.begin_copy_in(memory(), host_.bytes(), {}).finish(); }
  void device_to_host() { device_.begin_copy_out(host_.bytes(), memory(), {}).finish(); }
  void drive_to_device() {
    mover_.begin_fetch(offload::TieredBytes(range_), memory(), {}).finish();
  }
  void device_to_drive() {
    mover_.begin_store(memory(), offload::TieredBytes(range_), {}).finish();
  }

  // Clears where a way ends, so that what an earlier one left there is not taken for its result.
  void clear_host() { std::ranges::fill(host_.bytes(), std::byte{0}); }
  void clear_device() {
    clear_host();
    host_to_device();
  }
  void clear_drive() {
    clear_host();
    host_to_drive();
  }
  void clear_device_and_fill_host() {
    clear_device();
    fill(host_.bytes());
  }
  void clear_drive_and_fill_host() {
    clear_drive();
    fill(host_.bytes());
  }

  bool host_is_right() const {
    for (std::uint64_t at = 0; at < host_.size_bytes(); at += kChunkBytes)
      if (!std::ranges::equal(host_.bytes().subspan(at, kChunkBytes), pattern_.at(at, kChunkBytes)))
        return false;
    return true;
  }
  bool device_is_right() {
    clear_host();
    device_to_host();
    return host_is_right();
  }
  bool drive_is_right() {
    clear_host();
    drive_to_host();
    return host_is_right();
  }

 private:
  offload::DeviceSpan memory() const { return on_device_.device_span().first(host_.size_bytes()); }
  void fill(std::span<std::byte> bytes) const {
    for (std::uint64_t at = 0; at < bytes.size(); at += kChunkBytes)
      std::ranges::copy(pattern_.at(at, kChunkBytes),
                        bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }

  offload::Device& device_;
  nvme::IoEngine& io_;
  offload::ScratchFile file_;
  const offload::FileRange range_;
  std::vector<nvme::Registration> registrations_;  // end before the file
  std::string why_buffered_;
  const nvme::BenchPattern pattern_;
  const offload::Buffer host_;
  const offload::Buffer on_device_;
  offload::Mover mover_;
};

// A way, and how it is run: `prepare` before the clock, `is_right` after it.
struct Way {
  const char* name;
  bool is_link;
  bool reads;
  void (Ways::*run)();
  void (Ways::*prepare)();
  bool (Ways::*is_right)();
};

bool host_is_right(Ways& ways) {
  return ways.host_is_right();
}

constexpr Way kWays[] = {
    {"drive to host", true, true, &Ways::drive_to_host, &Ways::clear_host, nullptr},
    {"host to device", true, true, &Ways::host_to_device, &Ways::clear_device_and_fill_host,
     &Ways::device_is_right},
    {"drive to device", false, true, &Ways::drive_to_device, &Ways::clear_device,
     &Ways::device_is_right},
    {"device to host", true, false, &Ways::device_to_host, &Ways::clear_host, nullptr},
    {"host to drive", true, false, &Ways::host_to_drive, &Ways::clear_drive_and_fill_host,
     &Ways::drive_is_right},
    {"device to drive", false, false, &Ways::device_to_drive, &Ways::clear_drive,
     &Ways::drive_is_right},
};

class Measurement {
 public:
  Measurement(Ways& ways, const DevicePathOptions& options) : ways_(ways), options_(options) {
    for (const Way& way : kWays) {
      if (!(way.reads ? options.reads : options.writes)) continue;
      used_.push_back(&way);
      found_.paths.push_back({.name = way.name, .is_link = way.is_link});
    }
    found_.why_buffered = ways.why_buffered();
  }

  // Not counted: files are registered and tiles touched, and every way's bytes are compared.
  void warm_up() {
    for (const Way* way : used_) {
      (ways_.*way->prepare)();
      (ways_.*way->run)();
      const bool right = way->is_right == nullptr ? host_is_right(ways_) : (ways_.*way->is_right)();
      found_.bytes_right = found_.bytes_right && right;
    }
  }

  // In the opposite order every other round.
  void take_round(int round) {
    std::vector<double> rates(used_.size());
    for (std::size_t i = 0; i < used_.size(); ++i) {
      const std::size_t way = round % 2 == 0 ? i : used_.size() - 1 - i;
      const Clock::time_point begin = Clock::now();
      (ways_.*used_[way]->run)();
      const double seconds = seconds_since(begin);
      rates[way] = static_cast<double>(options_.size_bytes) / std::max(seconds, 1e-9);
    }
    for (std::size_t i = 0; i < used_.size(); ++i) {
      found_.paths[i].rates.push_back(rates[i]);
      // The two links of a way stand before it.
      if (!used_[i]->is_link)
        found_.paths[i].of_bounds.push_back(rates[i] / std::min(rates[i - 1], rates[i - 2]));
    }
  }

  DevicePaths take() { return std::move(found_); }

 private:
  Ways& ways_;
  const DevicePathOptions& options_;
  std::vector<const Way*> used_;
  DevicePaths found_;
};

}  // namespace

DevicePaths measure_device_paths(offload::Device& device, nvme::IoEngine& io,
                                 offload::MemoryPool& pinned, const offload::SwapPlace& place,
                                 const DevicePathOptions& options,
                                 const std::function<bool(int rounds)>& round_done) {
  SLUICE_CHECK(options.size_bytes > 0 && options.size_bytes % kChunkBytes == 0,
               "--size: expected a multiple of 1MiB with --memory cuda, found " +
                   format_bytes(options.size_bytes));
  Ways ways(device, io, pinned, place, options.size_bytes);
  Measurement measurement(ways, options);
  measurement.warm_up();
  const Clock::time_point begin = Clock::now();
  for (int round = 0;; ++round) {
    const double seconds = seconds_since(begin);
    if (round >= kFewestRounds && seconds >= options.seconds) break;
    measurement.take_round(round);
    if (!round_done(round + 1)) break;
  }
  return measurement.take();
}

}  // namespace sluice::cli
