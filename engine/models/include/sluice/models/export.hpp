#pragma once
// Exports a run's committed state (a swap directory, or a checkpoint) as safetensors weights with
// Hugging Face's names. Memory is bounded by two tiles of 4 MiB. No LibTorch. Thread-safe: a free
// function without state.

#include <cstdint>
#include <functional>
#include <string>

#include "sluice/base/dtype.hpp"

namespace sluice::models {

struct ExportResult {
  std::int64_t step = 0;
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t file_bytes = 0;
};

// Writes the master weights of the last committed step in `run_directory` to `out_path`, as fp32,
// or rounded to nearest even to bf16 or fp16. Verifies every chunk's checksum. `progress` may be
// empty; it gets the bytes done and the bytes in all. Blocks. Throws InvalidArgument when
// `out_path` lies in the run's own directory or is not a regular file, StorageError without a
// committed state or when the state is damaged, IoError.
ExportResult export_weights(const std::string& run_directory, const std::string& out_path,
                            DType dtype,
                            const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace sluice::models
