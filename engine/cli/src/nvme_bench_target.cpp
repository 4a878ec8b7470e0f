#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "nvme_bench.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/bench_file.hpp"

namespace sluice::cli {

namespace {

constexpr std::uint64_t kDefaultSizeBytes = kGiB;

enum class PathKind { directory, file };

PathKind kind_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    throw IoError(errno, "stat", path, 0, 0, "give a directory on the drive to measure, or a file");
  if (S_ISDIR(info.st_mode)) return PathKind::directory;
  SLUICE_CHECK(S_ISREG(info.st_mode),
               path + ": is neither a directory nor a regular file; give a directory on the drive");
  return PathKind::file;
}

bool writes(nvme::LoadPattern pattern) {
  return pattern != nvme::LoadPattern::read;
}

}  // namespace

BenchTarget::BenchTarget(const NvmeBenchArguments& arguments, const std::string& path,
                         const Progress& progress)
    : path_(path), own_file_(kind_of(path) == PathKind::directory) {
  SLUICE_CHECK(own_file_ || !writes(arguments.pattern) || arguments.overwrite,
               path + ": is a file, which --op " + std::string(name_of(arguments.pattern)) +
                   " would overwrite; add --overwrite if that is meant, or give a directory");
  nvme::BackendChoice choice =
      nvme::make_backend(arguments.backend, arguments.depth, arguments.io_threads);
  why_not_better_ = choice.why_not_better;
  engine_ = std::make_unique<nvme::IoEngine>(
      std::move(choice.backend), nvme::IoEngineOptions{arguments.block_bytes, arguments.depth});
  if (own_file_) {
    size_bytes_ = align_up(arguments.size_bytes.value_or(kDefaultSizeBytes), arguments.block_bytes);
    file_ = std::make_unique<nvme::SwapFile>(
        nvme::open_bench_file(path, size_bytes_, *engine_, nvme::DirectIo::automatic, progress));
  } else {
    file_ = std::make_unique<nvme::SwapFile>(
        path, writes(arguments.pattern) ? nvme::OpenMode::read_write : nvme::OpenMode::read_only,
        nvme::DirectIo::automatic);
    const std::uint64_t present = align_down(file_->size_bytes(), arguments.block_bytes);
    size_bytes_ = arguments.size_bytes.value_or(present);
    SLUICE_CHECK(size_bytes_ <= present, path + ": has " + format_bytes(file_->size_bytes()) +
                                             ", --size asks for " + format_bytes(size_bytes_));
    size_bytes_ = align_down(size_bytes_, arguments.block_bytes);
  }
  nvme::LoadOptions options;
  options.pattern = arguments.pattern;
  options.access = arguments.access;
  options.size_bytes = size_bytes_;
  // fio writes what it likes.
  options.verify = own_file_ && !(arguments.fio && writes(arguments.pattern));
  load_ = std::make_unique<nvme::Load>(*engine_, *file_, options);
}

void BenchTarget::clean() {
  if (own_file_) std::filesystem::remove(file_->path());
}

}  // namespace sluice::cli
