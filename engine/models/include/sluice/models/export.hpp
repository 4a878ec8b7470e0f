#pragma once
// Exports a run's committed state (a swap directory, or a checkpoint, of any number of ranks) as
// safetensors weights with Hugging Face's names. Memory is bounded by two tiles of 4 MiB. No
// LibTorch. Thread-safe: a free function without state.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sluice/base/dtype.hpp"

namespace sluice::models {

struct ExportOptions {
  // NOLINTNEXTLINE(google-explicit-constructor): a type alone is one file of it
  ExportOptions(DType the_dtype, std::uint64_t the_most_file_bytes = 0)
      : dtype(the_dtype), most_file_bytes(the_most_file_bytes) {}
  DType dtype;
  // Bytes of tensors in a file. More than these are written to several files and an index:
  // model-00001-of-00002.safetensors, ..., model.safetensors.index.json for "model.safetensors".
  // A larger tensor has a file of its own. 0: one file.
  std::uint64_t most_file_bytes;
};

struct ExportResult {
  std::int64_t step = 0;
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t file_bytes = 0;    // sum over all files
  std::vector<std::string> paths;  // `out_path`, or the files of an index
};

// Writes the master weights of the last committed step in `run_directory` to `out_path`, as fp32,
// or rounded to nearest even to bf16 or fp16. Verifies every chunk's checksum. `progress` may be
// empty; it gets the bytes done and the bytes in all. Blocks. Throws InvalidArgument when
// `out_path` lies in the run's own directory, or when a file that would be replaced is not a
// regular file, is a file of any run, or holds something else than weights. Throws StorageError
// without a committed state or when the state is damaged, IoError.
ExportResult export_weights(const std::string& run_directory, const std::string& out_path,
                            const ExportOptions& options,
                            const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace sluice::models
