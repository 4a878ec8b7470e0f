#include "sluice/nvme/load.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "measure/load_plan.hpp"
#include "measure/pages.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/nvme/bench_file.hpp"

namespace sluice::nvme {

namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds_so_far() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

double LoadResult::bytes_per_second() const {
  return seconds > 0 ? static_cast<double>(read_bytes + written_bytes) / seconds : 0;
}

double LoadResult::cpu_seconds_per_gib() const {
  const std::uint64_t bytes = read_bytes + written_bytes;
  return bytes > 0 ? cpu_seconds * static_cast<double>(kGiB) / static_cast<double>(bytes) : 0;
}

void LoadResult::add(const LoadResult& other) {
  seconds += other.seconds;
  cpu_seconds += other.cpu_seconds;
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
  requests += other.requests;
  bounce_bytes += other.bounce_bytes;
  latency.add(other.latency);
}

// The longest range that the load takes from the pattern: to write, or to compare samples of reads.
std::uint64_t pattern_bytes(const LoadPlan& plan) {
  return plan.written_from_bytes() > 0 ? plan.largest_bytes() : kPageBytes;
}

// A job is a list of ranges in flight together; for swap, the three states of a tile, which are
// read, touched and written back. There are enough jobs to keep the engine's queue full while the
// load waits for the oldest one. Reads and swap take a place in the memory, the most recently used
// first, because the processor's caches still hold it. Other writes take their bytes from the
// pattern.
class Load::Impl {
 public:
  Impl(IoEngine& engine, const SwapFile& file, LoadOptions options)
      : engine_(engine),
        file_(file),
        options_(std::move(options)),
        plan_(options_, engine.options()),
        pattern_(pattern_bytes(plan_), plan_.written_from_bytes()),
        memory_bytes_(plan_.memory_bytes()),
        memory_(memory_bytes_ > 0 ? make_pages(memory_bytes_, "buffers of the load") : nullptr) {
    if (memory_bytes_ > 0) {
      // Faults the pages in before the clock runs.
      std::memset(memory_.get(), 0, memory_bytes_);
      registered_memory_ = engine_.register_memory({memory_.get(), memory_bytes_});
    }
    registered_pattern_ = engine_.register_memory(pattern_.memory());
    registered_file_ = engine_.register_file(file_);
    free_all_places();
  }

  LoadResult run(double seconds, const std::function<bool()>& stop) {
    const IoCounters counters = engine_.counters();
    const IoLatency latency = engine_.latency();
    const double cpu = cpu_seconds_so_far();
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::duration<double>(seconds);
    LoadResult result;
    std::deque<Job> jobs;
    try {
      do {
        while (jobs.size() < plan_.jobs_in_flight()) jobs.push_back(begin_job());
        finish_next(jobs, result);
      } while (Clock::now() < end && !(stop && stop()));
      while (!jobs.empty()) finish_next(jobs, result);
    } catch (...) {
      jobs.clear();  // their tickets wait
      free_all_places();
      throw;
    }
    result.seconds = seconds_since(begin);
    result.cpu_seconds = cpu_seconds_so_far() - cpu;
    const IoCounters after = engine_.counters();
    result.requests = after.requests - counters.requests;
    result.bounce_bytes = after.bounce_bytes - counters.bounce_bytes;
    const IoLatency latency_after = engine_.latency();
    result.latency.reads = latency_after.reads.since(latency.reads);
    result.latency.writes = latency_after.writes.since(latency.writes);
    return result;
  }

  std::uint64_t memory_bytes() const { return memory_bytes_ + pattern_.memory().size(); }

 private:
  static constexpr std::size_t kSampleBytes = 64;
  static constexpr std::size_t kSampleStride = 1'234'567'891;  // any large odd number
  struct Job {
    LoadStep step;
    std::span<std::byte> memory;
    Ticket ticket;
    bool writing_back = false;
  };

  void free_all_places() {
    free_places_.clear();
    for (std::uint64_t end = memory_bytes_; end > 0; end -= plan_.job_bytes())
      free_places_.push_back(memory_.get() + end - plan_.job_bytes());
  }

  Job begin_job() {
    Job job{plan_.next(), {}, {}, false};
    if (job.step.op == IoOp::read) {
      job.memory = {free_places_.back(), plan_.job_bytes()};
      free_places_.pop_back();
      job.ticket = engine_.begin_reads(file_, places_of(job, reads_));
      return job;
    }
    writes_.clear();
    for (const LoadRange& range : job.step.ranges)
      writes_.push_back({range.offset_bytes, pattern_.at(range.offset_bytes, range.size_bytes)});
    job.ticket = engine_.begin_writes(file_, writes_);
    return job;
  }

  // Fills `places` with the job's ranges, one after another in the job's memory, each on a page.
  template <typename Range>
  std::span<const Range> places_of(const Job& job, std::vector<Range>& places) const {
    places.clear();
    std::size_t at = 0;
    for (const LoadRange& range : job.step.ranges) {
      places.push_back({range.offset_bytes, job.memory.subspan(at, range.size_bytes)});
      at += align_up(range.size_bytes, kPageBytes);
    }
    return places;
  }

  // Finishes a job that has ended; if there is none, waits for the oldest.
  void finish_next(std::deque<Job>& jobs, LoadResult& result) {
    const auto ended = std::find_if(jobs.begin(), jobs.end(),
                                    [](const Job& candidate) { return candidate.ticket.done(); });
    const auto next = ended == jobs.end() ? jobs.begin() : ended;
    Job job = std::move(*next);
    jobs.erase(next);
    job.ticket.finish();
    const bool reads = job.step.op == IoOp::read && !job.writing_back;
    for (const LoadRange& range : job.step.ranges)
      (reads ? result.read_bytes : result.written_bytes) += range.size_bytes;
    if (reads && options_.verify) verify(job);
    if (!reads || options_.pattern != LoadPattern::swap) {
      if (!job.memory.empty()) free_places_.push_back(job.memory.data());
      return;
    }
    for (const ReadRange& place : places_of(job, reads_)) touch(place.data);
    job.writing_back = true;
    job.ticket = engine_.begin_writes(file_, places_of(job, writes_));
    jobs.push_back(std::move(job));
  }

  // An optimizer's memory accesses without its arithmetic: reads and writes every cache line.
  static void touch(std::span<std::byte> memory) {
    constexpr std::size_t kLine = 64;
    for (std::size_t at = 0; at < memory.size(); at += kLine) {
      volatile std::byte& byte = memory[at];
      byte = byte;
    }
  }

  // Compares a sample of each block with the pattern; the sampled place varies.
  void verify(const Job& job) {
    for (const ReadRange& place : places_of(job, reads_)) {
      const std::size_t block_bytes = engine_.options().block_bytes;
      for (std::size_t begin = 0; begin < place.data.size(); begin += block_bytes) {
        const std::size_t size_bytes = std::min(block_bytes, place.data.size() - begin);
        const std::size_t count = std::min(size_bytes, kSampleBytes);
        sampled_ += kSampleStride;
        const std::size_t from = begin + sampled_ % (size_bytes - count + 1);
        const std::uint64_t offset_bytes = place.offset_bytes + from;
        const auto expected = pattern_.at(offset_bytes, count);
        if (std::memcmp(place.data.data() + from, expected.data(), count) == 0) continue;
        throw IoError(EIO, "read", file_.path(), offset_bytes, count,
                      "other bytes came back than the file was filled with: it was changed by "
                      "another program, or the drive is damaged");
      }
    }
  }

  IoEngine& engine_;
  const SwapFile& file_;
  const LoadOptions options_;
  LoadPlan plan_;
  const BenchPattern pattern_;
  const std::uint64_t memory_bytes_;
  const Pages memory_;
  Registration registered_memory_;
  Registration registered_pattern_;
  Registration registered_file_;
  std::vector<std::byte*> free_places_;  // taken from the end
  std::size_t sampled_ = 0;              // position of the last sample, modulo a block's size
  std::vector<ReadRange> reads_;         // scratch for the call in progress
  std::vector<WriteRange> writes_;
};

std::uint64_t load_memory_bytes(const LoadOptions& options, const IoEngineOptions& engine) {
  const LoadPlan plan(options, engine);
  return checked_add(plan.memory_bytes(),
                     checked_add(plan.written_from_bytes(), pattern_bytes(plan)));
}

Load::Load(IoEngine& engine, const SwapFile& file, LoadOptions options) {
  const std::uint64_t file_bytes = file.size_bytes();
  SLUICE_CHECK(options.size_bytes <= file_bytes,
               file.path() + ": a load over " + format_bytes(options.size_bytes) +
                   " of a file of " + format_bytes(file_bytes) +
                   "; lower its size, or allocate the file first");
  impl_ = std::make_unique<Impl>(engine, file, std::move(options));
}
Load::~Load() = default;
LoadResult Load::run(double seconds, const std::function<bool()>& stop) {
  return impl_->run(seconds, stop);
}
std::uint64_t Load::memory_bytes() const {
  return impl_->memory_bytes();
}

}  // namespace sluice::nvme
