#pragma once
// One PATH of `sluice nvme bench` or `tune`: a directory, which holds the bench file, or a file
// that existed before. Thread-compatible: callers synchronise.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command/arguments.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/nvme/file.hpp"
#include "terminal/console.hpp"

namespace sluice::cli {

struct DriveFileOptions : DriveArguments {
  std::uint64_t multiple_bytes = kPageBytes;  // the used size is a multiple of it
  // The option that writes to the file, for the message ("--op swap"); empty: the file is only
  // read.
  std::string written_by;
};

// The bytes that will be used of the bench file in the directory `path`; absent when `path` is a
// file. Throws IoError. Throws InvalidArgument when `path` is neither a directory nor a regular
// file.
std::optional<std::uint64_t> bench_file_bytes(const std::string& path,
                                              const DriveFileOptions& options);

class DriveFile {
 public:
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  // Opens the file. In a directory the constructor makes the bench file and fills it, with calls of
  // `progress`. Throws InvalidArgument, IoError.
  DriveFile(const std::string& path, const DriveFileOptions& options, const Progress& progress);
  ~DriveFile();  // with `clean`: removes the bench file of a directory
  DriveFile(DriveFile&&) noexcept = default;
  DriveFile& operator=(DriveFile&&) = delete;

  const std::string& path() const { return path_; }  // as given
  // Whether this program made the file, so that its content is known.
  bool own() const { return own_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  const nvme::SwapFile& file() const { return *file_; }
  // With `clean`: removes the bench file of a directory now, which frees its room. A file that was
  // given as PATH stays. Throws std::filesystem::filesystem_error.
  void clean();

 private:
  std::string path_;
  bool own_ = false;
  bool clean_ = false;
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<nvme::SwapFile> file_;  // null: moved from
};

// Opens all paths, with a bar on the console while files are filled. Prints a warning for a file
// that goes through the page cache. Throws Interrupted when `stop` is set.
std::vector<DriveFile> open_drive_files(const DriveFileOptions& options, Console& console,
                                        const std::atomic<int>& stop);

}  // namespace sluice::cli
