#pragma once
// LoadPlan: the ranges of the file that each job of a Load moves, and the number of jobs that keeps
// the engine's queue full. It has neither memory nor I/O.
//
// Thread-compatible: callers synchronise.

#include <cstdint>
#include <random>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_engine_options.hpp"
#include "sluice/nvme/load_options.hpp"

namespace sluice::nvme {

// A range of whole pages of the file.
struct LoadRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};
// One job: ranges that move together. For swap, the ranges are read first, then written back.
struct LoadStep {
  IoOp op = IoOp::read;
  std::vector<LoadRange> ranges;
};

class LoadPlan {
 public:
  // Throws InvalidArgument when the options do not fit the file or the engine's block.
  LoadPlan(const LoadOptions& options, const IoEngineOptions& engine);

  std::size_t jobs_in_flight() const { return jobs_; }
  std::uint64_t job_bytes() const { return job_bytes_; }
  // Size of the memory that writes other than swap's take their bytes from, in turn: as if every
  // job had memory of its own.
  std::uint64_t written_from_bytes() const { return written_from_bytes_; }
  std::uint64_t largest_bytes() const { return range_bytes_; }  // of a range
  // Memory of all jobs that read, or swap.
  std::uint64_t memory_bytes() const {
    return pattern_ == LoadPattern::write ? 0 : checked_mul(jobs_, job_bytes_);
  }

  LoadStep next();

 private:
  // Derive ranges, jobs and memory from the blocks in flight: plan_tiles() for swap, plan_ranges()
  // for the other patterns.
  void plan_tiles(const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t blocks);
  void plan_ranges(unsigned depth, std::uint64_t blocks);
  LoadRange next_sequential(std::uint64_t& cursor) const;
  LoadRange next_random();
  LoadStep next_tile();

  const LoadPattern pattern_;
  const LoadAccess access_;
  const std::uint64_t size_bytes_;
  std::uint64_t block_bytes_;
  std::uint64_t range_bytes_ = 0;
  std::uint64_t ranges_per_job_ = 1;  // not for swap, whose jobs take as many ranges as fit
  std::uint64_t job_bytes_ = 0;
  std::size_t jobs_ = 0;
  std::uint64_t written_from_bytes_ = 0;
  std::uint64_t read_cursor_ = 0;
  std::uint64_t write_cursor_ = 0;
  bool write_next_ = false;  // for mixed
  std::mt19937_64 random_;
  // For swap: each tensor's place in a region.
  std::vector<LoadRange> tensors_;
  std::uint64_t region_bytes_ = 0;
  std::size_t tensor_ = 0;       // index of the next tensor
  std::uint64_t in_tensor_ = 0;  // next byte of that tensor
};

}  // namespace sluice::nvme
