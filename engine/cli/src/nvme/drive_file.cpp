#include "nvme/drive_file.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/nvme/file_system.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "terminal/byte_progress.hpp"
#include "terminal/clock.hpp"

namespace sluice::cli {

namespace {

constexpr std::uint64_t kDefaultSizeBytes = kGiB;
constexpr nvme::IoEngineOptions kFillOptions{};

bool is_directory(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    throw IoError(errno, "stat", path, 0, 0, "give a directory on the drive to measure, or a file");
  if (S_ISDIR(info.st_mode)) return true;
  SLUICE_CHECK(S_ISREG(info.st_mode),
               path + ": is neither a directory nor a regular file; give a directory on the drive");
  return false;
}

// Refuses a file of a training run, also under another name: measuring would destroy the run.
void check_is_no_runs(const std::string& path) {
  struct stat info {};
  SLUICE_CHECK(::stat(path.c_str(), &info) != 0 || info.st_nlink == 1,
               path +
                   ": has another name (a hard link), whose content would be overwritten; give "
                   "another file, or a directory");
  SLUICE_CHECK(!offload::is_run_file(path),
               path +
                   ": is part of a training run, which lies in its directory and would be "
                   "destroyed; give another directory on the same drive");
}

// Refuses a path that is given twice: a drive measured twice at the same time would count twice.
void check_are_different(const std::vector<std::string>& paths) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      std::error_code ignored;
      SLUICE_CHECK(!std::filesystem::equivalent(paths[i], paths[j], ignored),
                   paths[i] + ": is given twice (also as " + paths[j] + ")");
    }
  }
}

}  // namespace

std::optional<std::uint64_t> bench_file_bytes(const std::string& path,
                                              const DriveFileOptions& options) {
  if (!is_directory(path)) return std::nullopt;
  return align_up(options.size_bytes.value_or(kDefaultSizeBytes), options.multiple_bytes);
}

DriveFile::DriveFile(const std::string& path, const DriveFileOptions& options,
                     const Progress& progress)
    : path_(path), own_(is_directory(path)), clean_(own_ && options.clean) {
  const bool writes = !options.written_by.empty();
  SLUICE_CHECK(own_ || !writes || options.overwrite,
               path + ": is a file, which " + options.written_by +
                   " would overwrite; add --overwrite if that is meant, or give a directory");
  if (own_) {
    nvme::IoEngine engine(
        nvme::make_backend(options.backend, kFillOptions.depth, options.io_threads).backend,
        kFillOptions);
    size_bytes_ = *bench_file_bytes(path, options);
    file_ = std::make_unique<nvme::SwapFile>(
        nvme::open_bench_file(path, size_bytes_, engine, nvme::DirectIo::automatic, progress,
                              clean_ ? nvme::OlderFile::goes : nvme::OlderFile::stays));
    return;
  }
  if (writes) check_is_no_runs(path);
  file_ = std::make_unique<nvme::SwapFile>(
      path, writes ? nvme::OpenMode::read_write : nvme::OpenMode::read_only,
      nvme::DirectIo::automatic);
  const std::uint64_t present = file_->size_bytes();
  size_bytes_ = options.size_bytes.value_or(present);
  SLUICE_CHECK(size_bytes_ <= present, path + ": has " + format_bytes(present) +
                                           ", --size asks for " + format_bytes(size_bytes_));
  SLUICE_CHECK(size_bytes_ >= options.multiple_bytes, path + ": " + format_bytes(size_bytes_) +
                                                          " to measure on (--size, or the file) is "
                                                          "less than one block of " +
                                                          format_bytes(options.multiple_bytes) +
                                                          "; give more, or a smaller --block");
  size_bytes_ = align_down(size_bytes_, options.multiple_bytes);
}

DriveFile::~DriveFile() {
  if (!file_) return;
  try {
    clean();
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void DriveFile::clean() {
  // Once: another program may make a file of this name afterwards.
  if (std::exchange(clean_, false)) std::filesystem::remove(file_->path());
}

std::vector<DriveFile> open_drive_files(const DriveFileOptions& options, Console& console,
                                        const std::atomic<int>& stop) {
  check_are_different(options.paths);
  std::vector<DriveFile> drives;
  for (const std::string& path : options.paths) {
    ByteProgress progress(console, "filling " + path, system_clock().seconds);
    drives.emplace_back(path, options, [&](std::uint64_t done, std::uint64_t all) {
      if (stop != 0) throw Interrupted(stop);
      progress.show(done, all);
    });
  }
  for (const DriveFile& drive : drives) {
    const std::string caution = nvme::file_system_caution(drive.path());
    if (!caution.empty()) console.print(caution);
    if (drive.file().why_buffered().empty()) continue;
    console.print(drive.path() +
                  ": through the page cache, so memory is measured and not a drive: " +
                  drive.file().why_buffered());
  }
  return drives;
}

}  // namespace sluice::cli
