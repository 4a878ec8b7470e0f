#pragma once
// One PATH of `sluice nvme bench` or `tune`: a directory, with the bench file in it, or a file that
// was there before. Thread-compatible: callers synchronise.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "terminal/console.hpp"

namespace sluice::cli {

struct DriveFileOptions {
  std::optional<std::uint64_t> size_bytes;  // absent: 1 GiB in a directory, else all of the file
  std::uint64_t multiple_bytes = 4096;      // of which the size that is used is a multiple
  // What would write to it, for the message ("--op swap"); empty: only read.
  std::string written_by;
  bool overwrite = false;  // an existing file may be written to
  nvme::BackendKind backend = nvme::BackendKind::automatic;
  unsigned io_threads = 8;
};

// What will be used of the bench file in the directory `path`; absent when it is not a directory.
// Throws IoError, InvalidArgument for what is no file either.
std::optional<std::uint64_t> bench_file_bytes(const std::string& path,
                                              const DriveFileOptions& options);

class DriveFile {
 public:
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  // Opens the file, or makes the bench file in a directory and fills it, with `progress`. Throws
  // InvalidArgument, IoError.
  DriveFile(const std::string& path, const DriveFileOptions& options, const Progress& progress);

  const std::string& path() const { return path_; }  // as given
  // Made by this program, so what it holds is known.
  bool own() const { return own_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  const nvme::SwapFile& file() const { return *file_; }
  // Removes the bench file of a directory; a file that was there before stays.
  void clean();

 private:
  std::string path_;
  bool own_ = false;
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<nvme::SwapFile> file_;
};

// All of them, with a bar on the console while files are filled; warns of a file that goes through
// the page cache. Throws Interrupted when `stop` is set.
std::vector<DriveFile> open_drive_files(const std::vector<std::string>& paths,
                                        const DriveFileOptions& options, Console& console,
                                        const volatile int& stop);

}  // namespace sluice::cli
