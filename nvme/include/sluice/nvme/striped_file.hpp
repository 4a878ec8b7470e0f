#pragma once
// StripedFile: one run of bytes that lies in several files, each on a drive of its own, so that all
// drives move a transfer at once. Chunks go to the drives in turn; a drive of twice the weight gets
// twice as many. Striping only: a drive that is lost takes its chunks with it.
//
// With one file it is that file, and costs nothing.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/nvme/file.hpp"

namespace sluice::nvme {

// Which part of a striped run of bytes lies where. Immutable; thread-safe.
class StripeLayout {
 public:
  // Everything in one part.
  StripeLayout() : StripeLayout({1}, kDefaultChunkBytes) {}
  // `weights`: chunks of each part in every turn. Throws InvalidArgument on none, on a weight of 0
  // or above 64, on a chunk that is no multiple of 4096 up to 1 GiB.
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
  // The part that holds the byte at `offset_bytes`, and how much of the next `size_bytes` follow
  // there.
  Piece first_piece(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;
  // What the first `size_bytes` take of this part.
  std::uint64_t part_bytes(std::size_t part, std::uint64_t size_bytes) const;
  // How many of the first bytes are there when this part has only `part_size_bytes`.
  std::uint64_t covered_bytes(std::size_t part, std::uint64_t part_size_bytes) const;

 private:
  std::vector<unsigned> weights_;
  std::uint64_t chunk_bytes_;
  // Of one turn, by position: whose chunk it is, and which of that part's chunks.
  std::vector<std::size_t> part_at_;
  std::vector<unsigned> rank_at_;
};

// Small whole numbers in the proportion of `rates` (bytes a second of each drive, above 0), at most
// 16 in all where that comes within a sixteenth; drives that differ by less than a tenth get the
// same. Throws InvalidArgument.
std::vector<unsigned> stripe_weights(std::span<const double> rates);

// Thread-compatible like SwapFile: a const one may be used by any number of threads.
class StripedFile {
 public:
  // One part.
  explicit StripedFile(SwapFile file);
  // Throws InvalidArgument when the layout has another number of parts.
  StripedFile(std::vector<SwapFile> parts, StripeLayout layout);

  const std::vector<SwapFile>& parts() const { return parts_; }
  const StripeLayout& layout() const { return layout_; }
  // Of the first part.
  const std::string& path() const { return parts_.front().path(); }
  // Empty, or why O_DIRECT could not be had for one of them.
  std::string why_buffered() const;
  std::uint32_t offset_alignment() const;  // the largest of theirs

  // How many of the first bytes all parts are long enough for.
  std::uint64_t size_bytes() const;
  // SwapFile::allocate of every part's share.
  void allocate(std::uint64_t size_bytes);
  void sync_data() const;

 private:
  std::vector<SwapFile> parts_;
  StripeLayout layout_;
};

}  // namespace sluice::nvme
