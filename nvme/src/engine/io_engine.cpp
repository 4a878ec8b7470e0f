#include "sluice/nvme/io_engine.hpp"

#include <string>
#include <utility>
#include <vector>

#include "engine/drive_queue.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::nvme {

class IoEngine::Impl {
 public:
  Impl(std::vector<std::unique_ptr<IoBackend>> backends, IoEngineOptions options) {
    SLUICE_CHECK(!backends.empty(), "IoEngine: a backend is needed");
    for (std::unique_ptr<IoBackend>& backend : backends)
      queues_.push_back(std::make_unique<DriveQueue>(std::move(backend), options));
  }

  const std::vector<std::unique_ptr<DriveQueue>>& queues() const { return queues_; }
  // With more drives than queues, drives share queues.
  DriveQueue& queue_of(std::size_t drive) const { return *queues_[drive % queues_.size()]; }
  // The queue for a new transfer, which the queue's thread ends. A forked child has no such thread.
  DriveQueue& queue_to_begin(std::size_t drive) const {
    SLUICE_CHECK(forks_ == fork_count(),
                 "IoEngine: it was made before a fork and works in the parent process only; make a "
                 "new one in the child");
    return queue_of(drive);
  }

  // Begins ranges[i] of part i in the part's queue; one ticket for all.
  template <typename Range>
  Ticket begin_parts(const StripedFile& file, const std::vector<std::vector<Range>>& ranges) const {
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const SwapFile& part = file.parts()[i];
      tickets.push_back(
          queue_to_begin(part.drive()).begin(part, std::span<const Range>(ranges[i])));
    }
    return join(std::move(tickets));
  }

 private:
  const std::uint64_t forks_ = fork_count();
  std::vector<std::unique_ptr<DriveQueue>> queues_;
};

namespace {

std::vector<std::unique_ptr<IoBackend>> alone(std::unique_ptr<IoBackend> backend) {
  std::vector<std::unique_ptr<IoBackend>> backends;
  backends.push_back(std::move(backend));
  return backends;
}

// The ranges of each part that make up [offset_bytes, offset_bytes + data.size()). Neighbouring
// ranges of a part that are adjacent in memory are one range.
template <typename Range, typename Bytes>
std::vector<std::vector<Range>> ranges_by_part(const StripeLayout& layout,
                                               std::uint64_t offset_bytes, Bytes data) {
  std::vector<std::vector<Range>> ranges(layout.parts());
  while (!data.empty()) {
    const StripeLayout::Piece piece = layout.first_piece(offset_bytes, data.size());
    std::vector<Range>& part = ranges[piece.part];
    const Bytes memory = data.first(piece.size_bytes);
    if (!part.empty() && part.back().data.data() + part.back().data.size() == memory.data()) {
      part.back().data = {part.back().data.data(), part.back().data.size() + memory.size()};
    } else {
      part.push_back({piece.offset_bytes, memory});
    }
    offset_bytes += piece.size_bytes;
    data = data.subspan(piece.size_bytes);
  }
  return ranges;
}

}  // namespace

IoEngine::IoEngine(std::unique_ptr<IoBackend> backend, IoEngineOptions options)
    : IoEngine(alone(std::move(backend)), options) {}

IoEngine::IoEngine(std::vector<std::unique_ptr<IoBackend>> backends, IoEngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(backends), options)) {}

IoEngine::~IoEngine() = default;

std::string_view IoEngine::backend_name() const {
  return impl_->queue_of(0).backend_name();
}

const IoEngineOptions& IoEngine::options() const {
  return impl_->queue_of(0).options();
}

Ticket IoEngine::begin_read(const SwapFile& file, std::uint64_t offset_bytes,
                            std::span<std::byte> data) {
  const ReadRange range{offset_bytes, data};
  return begin_reads(file, {&range, 1});
}

Ticket IoEngine::begin_write(const SwapFile& file, std::uint64_t offset_bytes,
                             std::span<const std::byte> data) {
  const WriteRange range{offset_bytes, data};
  return begin_writes(file, {&range, 1});
}

Ticket IoEngine::begin_reads(const SwapFile& file, std::span<const ReadRange> ranges) {
  return impl_->queue_to_begin(file.drive()).begin(file, ranges);
}

Ticket IoEngine::begin_writes(const SwapFile& file, std::span<const WriteRange> ranges) {
  return impl_->queue_to_begin(file.drive()).begin(file, ranges);
}

Ticket IoEngine::begin_read(const StripedFile& file, std::uint64_t offset_bytes,
                            std::span<std::byte> data) {
  if (file.parts().size() == 1) return begin_read(file.parts().front(), offset_bytes, data);
  return impl_->begin_parts(file, ranges_by_part<ReadRange>(file.layout(), offset_bytes, data));
}

Ticket IoEngine::begin_write(const StripedFile& file, std::uint64_t offset_bytes,
                             std::span<const std::byte> data) {
  if (file.parts().size() == 1) return begin_write(file.parts().front(), offset_bytes, data);
  return impl_->begin_parts(file, ranges_by_part<WriteRange>(file.layout(), offset_bytes, data));
}

std::size_t IoEngine::drives() const {
  return impl_->queues().size();
}

IoCounters IoEngine::counters() const {
  IoCounters sum;
  for (const auto& queue : impl_->queues()) sum.add(queue->counters());
  return sum;
}

IoCounters IoEngine::drive_counters(std::size_t drive) const {
  SLUICE_CHECK(drive < drives(), "counters of drive " + std::to_string(drive) +
                                     " of an engine of " + std::to_string(drives()) + " drives");
  return impl_->queue_of(drive).counters();
}

IoLatency IoEngine::latency() const {
  IoLatency sum;
  for (const auto& queue : impl_->queues()) sum.add(queue->latency());
  return sum;
}

// Registers with every drive's queue, or with none.
Registration IoEngine::register_memory(std::span<std::byte> memory) {
  Registration made;
  made.memory_ = memory;
  std::size_t added = 0;
  const auto& queues = impl_->queues();
  while (added < queues.size() && queues[added]->add_memory(memory, made.why_not_)) ++added;
  if (added == queues.size()) {
    made.engine_ = this;
  } else {
    for (std::size_t i = 0; i < added; ++i) queues[i]->remove_memory(memory);
  }
  return made;
}

Registration IoEngine::register_file(const SwapFile& file) {
  SLUICE_CHECK(file.fd() >= 0, "a file that was moved to another SwapFile cannot be registered");
  Registration made;
  made.fd_ = file.fd();
  made.drive_ = file.drive();
  if (impl_->queue_of(made.drive_).add_file(made.fd_, made.why_not_)) made.engine_ = this;
  return made;
}

Registration& Registration::operator=(Registration&& other) noexcept {
  if (this == &other) return *this;
  end();
  engine_ = std::exchange(other.engine_, nullptr);
  memory_ = other.memory_;
  fd_ = other.fd_;
  drive_ = other.drive_;
  why_not_ = std::move(other.why_not_);
  return *this;
}

void Registration::end() noexcept {
  IoEngine* engine = std::exchange(engine_, nullptr);
  if (engine == nullptr) return;
  try {
    if (fd_ >= 0) {
      engine->impl_->queue_of(drive_).remove_file(fd_);
      return;
    }
    for (const auto& queue : engine->impl_->queues()) queue->remove_memory(memory_);
  } catch (const std::exception& error) {
    // The failed backend took its registrations with it.
    log(LogLevel::debug, std::string("end of a registration: ") + error.what());
  }
}

}  // namespace sluice::nvme
