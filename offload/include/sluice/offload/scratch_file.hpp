#pragma once
// ScratchFile: a file of fixed ranges that need not survive the run: 16-bit weights, gradients that
// wait for their update, unit inputs. The file DIR/scratch.NAME.swap is created in a directory that
// a SwapStore or DirectoryLock holds. The destructor removes it; the next SwapStore in the
// directory removes the scratch files of a killed run.
//
// Thread-compatible: callers synchronise; any thread may use the ranges.

#include <cstdint>
#include <string>

#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/swap_place.hpp"
#include "sluice/offload/tiered_bytes.hpp"

namespace sluice::offload {

class ScratchFile {
 public:
  // Allocates `size_bytes`, at least 1. Throws IoError, naming needed and free bytes, on a full
  // disk; InvalidArgument when a file of this name is in use.
  ScratchFile(const SwapPlace& place, const std::string& name, std::uint64_t size_bytes,
              nvme::DirectIo direct);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // The next free range, aligned to 4096 bytes; every range but the last counts as rounded up to
  // that. Throws InvalidArgument beyond the size given at construction.
  FileRange take(std::uint64_t size_bytes);
  const std::string& path() const { return file_.path(); }
  const nvme::StripedFile& file() const { return file_; }

 private:
  nvme::StripedFile file_;
  std::uint64_t size_bytes_;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace sluice::offload
