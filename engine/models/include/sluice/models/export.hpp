#pragma once
// A run's committed state (a swap directory, or a checkpoint) as safetensors weights in Hugging
// Face naming. Bounded memory: one tile. No LibTorch.

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

// Writes the fp32 master weights of the last committed step in `run_directory` to `out_path`, as
// fp32 or rounded to nearest even to bf16 / fp16. Every chunk's checksum is verified. `progress`
// (may be empty) gets bytes done and bytes in all. Throws StorageError (no committed state,
// damaged), IoError.
ExportResult export_weights(const std::string& run_directory, const std::string& out_path,
                            DType dtype,
                            const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace sluice::models
