#include "cuda/direct_storage.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cufile_reader.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "sluice/offload/scratch_file.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::offload {
namespace cuda {

namespace {

constexpr std::size_t kChunkBytes = kMiB;  // of host memory, for writing and comparing

// The message of the exception that `work()` throws; empty without one.
template <typename Work>
std::string why_fails(Work&& work) {
  try {
    std::forward<Work>(work)();
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

MoverOptions through_tiles(MoverOptions options) {
  options.direct = nullptr;
  return options;
}

// The file, the device's memory and the host tiles. Confined to the thread that measures.
class Bench {
 public:
  Bench(const StorageRoute& route, const DirectStorageOptions& options, const Clock& now)
      : device_(route.device),
        now_(now),
        rounds_(options.rounds),
        file_(route.place, "direct-probe", options.file_bytes, nvme::DirectIo::automatic),
        range_(file_.take(options.file_bytes)),
        pattern_(kChunkBytes),
        chunk_(kChunkBytes),
        to_(device_.memory().allocate(options.file_bytes, "measuring GPUDirect Storage")),
        mover_(device_, &route.io, &route.staging, through_tiles(route.mover)) {
    for (const nvme::SwapFile& part : range_.file->parts())
      registrations_.push_back(route.io.register_file(part));
    // Blocks that are allocated but not written would be read without the drive.
    for (std::uint64_t at = 0; at < range_.size_bytes; at += kChunkBytes)
      route.io.begin_write(*range_.file, range_.offset_bytes + at, pattern_.at(at, kChunkBytes))
          .finish();
    range_.file->sync_data();
  }

  // Both ways in turn. Throws when cuFile cannot read, or brings wrong bytes.
  void measure(CufileReader& reader, DirectStorage& found) {
    std::vector<double> by_cufile;
    std::vector<double> staged;
    for (int round = 0; round <= rounds_; ++round) {
      clear();
      const double cufile_seconds = seconds_of([&] { read_by(reader); });
      found.bytes_right = holds_the_file();
      if (!found.bytes_right) throw Error("cuFile read other bytes than the file holds");
      const double staged_seconds =
          seconds_of([&] { mover_.begin_fetch(TieredBytes(range_), to_.device_span()).finish(); });
      if (round == 0) continue;  // files were registered, buffers made
      by_cufile.push_back(cufile_seconds);
      staged.push_back(staged_seconds);
    }
    const auto size_bytes = static_cast<double>(range_.size_bytes);
    found.cufile_bytes_per_second = size_bytes / nvme::quantile_of(by_cufile, 0.5);
    found.staged_bytes_per_second = size_bytes / nvme::quantile_of(staged, 0.5);
  }

 private:
  template <typename Work>
  double seconds_of(Work&& work) const {
    const auto begin = now_();
    std::forward<Work>(work)();
    return std::chrono::duration<double>(now_() - begin).count();
  }

  // Clears the memory, so that bytes of an earlier read do not count as read now.
  void clear() {
    std::fill(chunk_.begin(), chunk_.end(), std::byte{0});
    for (std::uint64_t at = 0; at < to_.size_bytes(); at += kChunkBytes)
      device_.begin_copy_in(to_.device_span().subspan(at, kChunkBytes), chunk_).finish();
  }

  bool holds_the_file() {
    for (std::uint64_t at = 0; at < to_.size_bytes(); at += kChunkBytes) {
      device_.begin_copy_out(chunk_, to_.device_span().subspan(at, kChunkBytes)).finish();
      const auto expected = pattern_.at(at, kChunkBytes);
      if (!std::equal(chunk_.begin(), chunk_.end(), expected.begin())) return false;
    }
    return true;
  }

  void read_by(CufileReader& reader) {
    std::optional<Ticket> read =
        reader.begin_read(range_, to_.device_span(), {});  // no compute work uses it
    if (!read) throw Error(reader.why_not());
    read->finish();
  }

  Device& device_;
  const Clock now_;
  const int rounds_;
  ScratchFile file_;
  const FileRange range_;
  std::vector<nvme::Registration> registrations_;  // end before the file
  const nvme::BenchPattern pattern_;
  std::vector<std::byte> chunk_;
  const Buffer to_;
  Mover mover_;
};

// Tries direct reads first, then compatibility mode.
void measure(const std::shared_ptr<CufileApi>& files, GpuDevice& device, Bench& bench,
             DirectStorage& found) {
  for (const CompatMode mode : {CompatMode::refused, CompatMode::allowed}) {
    const std::string why = why_fails([&] {
      auto reader = std::make_unique<CufileReader>(files, device, mode);
      bench.measure(*reader, found);
      reader->forget_files();
      found.reader = std::move(reader);
    });
    if (why.empty()) return;
    // The first says what the machine lacks.
    if (found.why_not_direct.empty() || !found.bytes_right) found.why_not_direct = why;
    if (!found.bytes_right) return;
  }
}

std::string rate(double bytes_per_second) {
  return format_bytes(static_cast<std::uint64_t>(bytes_per_second)) + "/s";
}

}  // namespace

void decide(DirectStorage& measured) {
  const std::string by_cufile = rate(measured.cufile_bytes_per_second);
  const std::string staged = rate(measured.staged_bytes_per_second);
  const bool direct = measured.why_not_direct.empty();
  const bool reads = measured.bytes_right && measured.cufile_bytes_per_second > 0;
  const bool used = reads && measured.cufile_bytes_per_second > measured.staged_bytes_per_second;
  if (!used) measured.reader.reset();
  if (used && direct) {
    measured.line = "GPUDirect Storage is used: " + by_cufile + ", through host memory " + staged;
  } else if (used) {
    measured.line = "cuFile is used, but copies through host memory itself, since " +
                    measured.why_not_direct + ": " + by_cufile + ", the usual way " + staged;
  } else if (direct) {
    measured.line =
        "GPUDirect Storage is not used: " + by_cufile + ", through host memory " + staged;
  } else {
    measured.line = "GPUDirect Storage is not used: " + measured.why_not_direct;
    if (!reads) return;
    measured.line +=
        "; cuFile would copy through host memory itself (" + by_cufile + " beside " + staged + ")";
  }
}

DirectStorage probe(const LoadedCufile& cufile, const StorageRoute& route,
                    const DirectStorageOptions& options, const Clock& now) {
  SLUICE_CHECK(options.file_bytes > 0 && options.file_bytes % kChunkBytes == 0,
               "the file that GPUDirect Storage is measured on has whole MiB, not " +
                   std::to_string(options.file_bytes) + " bytes");
  SLUICE_CHECK(options.rounds >= 1, "GPUDirect Storage is measured in at least 1 round, not " +
                                        std::to_string(options.rounds));
  DirectStorage found;
  auto* const gpu = dynamic_cast<GpuDevice*>(&route.device);
  if (gpu == nullptr) {
    found.why_not_direct = std::string(route.device.name()) + " is no NVIDIA GPU";
  } else if (cufile.files == nullptr) {
    found.why_not_direct = cufile.why_not;
  } else {
    const std::string why = why_fails([&] {
      Bench bench(route, options, now);
      measure(cufile.files, *gpu, bench, found);
    });
    if (!why.empty()) found.why_not_direct = why;
  }
  decide(found);
  return found;
}

}  // namespace cuda

DirectStorage probe_direct_storage(Device& device, nvme::IoEngine& io, MemoryPool& staging,
                                   const MoverOptions& mover, const SwapPlace& place,
                                   const DirectStorageOptions& options) {
  cuda::LoadedCufile cufile;
  if (dynamic_cast<cuda::GpuDevice*>(&device) != nullptr)
    cufile.files = cuda::load_cufile(cufile.why_not);
  return cuda::probe(cufile, {device, io, staging, mover, place}, options);
}

}  // namespace sluice::offload
