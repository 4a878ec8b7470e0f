#pragma once
// StripedFile: one run of bytes in several files, each on a drive of its own, so that all drives
// move a transfer at once. For that, each part is opened with the number of its drive (SwapFile) on
// an engine with as many backends; parts of one number share a queue. Chunks go to the drives in
// turn; a drive of twice the weight gets twice as many chunks. There is no redundancy: a lost drive
// loses its chunks.
//
// A striped file of one part is that file, at no extra cost.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/nvme/file.hpp"

namespace sluice::nvme {

// StripeLayout: the part and offset of every byte of a striped run. Calls throw InvalidArgument for
// a part that the layout lacks; a moved-from layout has none. Thread-safe: immutable.
class StripeLayout {
 public:
  // A layout of one part.
  StripeLayout() : StripeLayout({1}, kDefaultChunkBytes) {}
  // `weights`: chunks of each part in every turn, each 1 to 64. `chunk_bytes`: a multiple of 4096
  // up to 1 GiB. Throws InvalidArgument for other values, or without weights.
  StripeLayout(std::vector<unsigned> weights, std::uint64_t chunk_bytes);

  static constexpr std::uint64_t kDefaultChunkBytes = 1U << 20U;

  std::size_t parts() const { return weights_.size(); }
  const std::vector<unsigned>& weights() const { return weights_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }

  struct Piece {
    std::size_t part = 0;
    std::uint64_t offset_bytes = 0;  // in the part
    std::uint64_t size_bytes = 0;
  };
  // A prefix of [offset_bytes, offset_bytes + size_bytes) that lies in one part: up to the end of
  // its chunk, or the whole range in a layout of one part.
  Piece first_piece(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;
  // Bytes in this part of the first `size_bytes` of the run.
  std::uint64_t part_bytes(std::size_t part, std::uint64_t size_bytes) const;
  // Length of the run's beginning that a part of `part_size_bytes` suffices for; at most 2^64 - 1.
  std::uint64_t covered_bytes(std::size_t part, std::uint64_t part_size_bytes) const;

 private:
  std::vector<unsigned> weights_;
  std::uint64_t chunk_bytes_;
  // For each position of a turn: the chunk's part, and its index among that part's chunks.
  std::vector<std::size_t> part_at_;
  std::vector<unsigned> rank_at_;
};

// Stripe weights in proportion to `rates` (bytes per second of each drive): small whole numbers
// that sum to about 16 at most, or to twice the number of drives if that is more. Takes the
// smallest sum that loads no drive by more than a sixteenth above its share, else the best sum.
// Rates that differ by less than a tenth give equal weights. Throws InvalidArgument unless every
// rate is finite and above 0. Thread-safe.
std::vector<unsigned> stripe_weights(std::span<const double> rates);

// Owns its parts. A moved-from file has none: its calls, and transfers of bytes, throw
// InvalidArgument.
// Thread-compatible: callers synchronise; any number of threads may use a const StripedFile.
class StripedFile {
 public:
  // A striped file of one part.
  explicit StripedFile(SwapFile file);
  // Throws InvalidArgument when `layout` has another number of parts.
  StripedFile(std::vector<SwapFile> parts, StripeLayout layout);

  const std::vector<SwapFile>& parts() const { return parts_; }
  const StripeLayout& layout() const { return layout_; }
  // Path of the first part.
  const std::string& path() const;
  // Why a part is buffered, for the first such part; empty when all are direct.
  std::string why_buffered() const;
  std::uint32_t offset_alignment() const;  // the largest of the parts' alignments

  // Length of the run that all parts are long enough for. Throws IoError.
  std::uint64_t size_bytes() const;
  // SwapFile::allocate() of every part's share of `size_bytes`. Blocks. Throws IoError.
  void allocate(std::uint64_t size_bytes);
  // SwapFile::sync_data() of every part. Blocks. Throws IoError.
  void sync_data() const;

 private:
  void check_parts() const;
  std::vector<SwapFile> parts_;
  StripeLayout layout_;
};

}  // namespace sluice::nvme
