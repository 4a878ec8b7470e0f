#include "engine/drive_queue.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::nvme {

namespace {

// The kernel moves at most 2 GiB less a page in one request (MAX_RW_COUNT).
constexpr std::uint32_t kMaxBlockBytes = 1U << 30U;

IoEngineOptions checked_options(const IoBackend* backend, IoEngineOptions options) {
  SLUICE_CHECK(backend != nullptr, "IoEngine: a backend is needed");
  SLUICE_CHECK(options.block_bytes >= 4096 && options.block_bytes <= kMaxBlockBytes &&
                   options.block_bytes % 4096 == 0,
               "I/O block of " + std::to_string(options.block_bytes) +
                   " bytes: expected a multiple of 4096, 4 KiB to 1 GiB");
  SLUICE_CHECK(options.depth >= 1 && options.depth <= 4096,
               "I/O depth " + std::to_string(options.depth) + ": expected 1 to 4096");
  SLUICE_CHECK(
      options.reads_per_write >= 1 && options.reads_per_write <= 1024,
      "I/O reads per write " + std::to_string(options.reads_per_write) + ": expected 1 to 1024");
  SLUICE_CHECK(backend->depth() > 0,
               "IoEngine: the backend has a depth of 0, so that no transfer "
               "could begin");
  options.depth = std::min(options.depth, backend->depth());
  return options;
}

// A block that a range covers partly is read, changed and written back: no other range may have
// bytes of it. Ranges of whole blocks are left alone.
void check_apart(const SwapFile& file, std::span<const WriteRange> ranges) {
  const std::uint64_t block_bytes = file.offset_alignment();
  const auto is_whole = [&](const WriteRange& range) {
    return range.offset_bytes % block_bytes == 0 && range.data.size() % block_bytes == 0;
  };
  if (ranges.size() < 2 || std::ranges::all_of(ranges, is_whole)) return;
  std::vector<WriteRange> sorted;
  std::ranges::copy_if(ranges, std::back_inserter(sorted),
                       [](const WriteRange& range) { return !range.data.empty(); });
  std::ranges::sort(sorted, {}, &WriteRange::offset_bytes);
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const WriteRange& one = sorted[i - 1];
    const WriteRange& next = sorted[i];
    SLUICE_CHECK(align_down(next.offset_bytes, block_bytes) >= one.offset_bytes + one.data.size(),
                 file.path() + ": a write of " + std::to_string(one.data.size()) +
                     " bytes at offset " + std::to_string(one.offset_bytes) +
                     " and one at offset " + std::to_string(next.offset_bytes) +
                     " share a block of " + std::to_string(block_bytes) +
                     " bytes: make them one range, or begin one when the other has ended");
  }
}

}  // namespace

DriveQueue::DriveQueue(std::unique_ptr<IoBackend> backend, IoEngineOptions options)
    : options_(checked_options(backend.get(), options)),
      read_row_(options.trace, "read"),
      write_row_(options.trace, "write"),
      backend_name_(backend->name()),
      backend_(std::move(backend)),
      pump_(*backend_, options_),
      thread_(start_thread("sluice-io", [this] { run(); })) {}

DriveQueue::~DriveQueue() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (backend_) backend_->wake();
  }
  thread_.join();
}

void DriveQueue::check_range(const SwapFile& file, std::uint64_t offset_bytes,
                             std::uint64_t size_bytes) const {
  constexpr auto kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  // The end, rounded up to whole blocks, must still be a valid offset.
  SLUICE_CHECK(offset_bytes <= kMaxOffset - options_.block_bytes &&
                   size_bytes <= kMaxOffset - options_.block_bytes - offset_bytes,
               file.path() + ": " + std::to_string(size_bytes) + " bytes at offset " +
                   std::to_string(offset_bytes) + " end beyond the largest file offset");
  SLUICE_CHECK(file.offset_alignment() <= options_.block_bytes &&
                   file.memory_alignment() <= BouncePool::kAlignment,
               file.path() + ": direct I/O in units of " + std::to_string(file.offset_alignment()) +
                   " bytes from memory aligned to " + std::to_string(file.memory_alignment()) +
                   " is not supported with this block size; raise it or switch direct I/O off");
}

// `count` idle transfers; allocates missing ones. When it throws, all transfers stay idle.
TransferList DriveQueue::take_idle(std::size_t count) {
  TransferList taken;
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (idle_.empty()) {
        transfers_.push_back(std::make_unique<Transfer>());
        idle_.push(*transfers_.back());
      }
      taken.push(*idle_.pop());
    }
  } catch (...) {
    idle_.append(taken);
    throw;
  }
  return taken;
}

template <typename Range>
Ticket DriveQueue::begin_all(IoOp op, const SwapFile& file, std::span<const Range> ranges) {
  std::size_t count = 0;
  for (const Range& range : ranges) {
    check_range(file, range.offset_bytes, range.data.size());
    count += range.data.empty() ? 0 : 1;
  }
  if constexpr (std::is_same_v<Range, WriteRange>) check_apart(file, ranges);
  if (count == 0) return Ticket();
  TicketSource source;
  MutexLock lock(mutex_);
  if (broken_) return Ticket::ended(broken_);
  TransferList begun = take_idle(count);
  Ticket ticket = source.ticket();  // nothing below throws: a dropped ticket would wait
  Transfer* const leader = begun.front();
  fill_inbox(op, file, ranges, begun);
  if (read_row_.on()) leader->begun_at = TraceClock::now();
  leader->source = std::move(source);
  leader->group_left = count;
  if (hungry_) {
    hungry_ = false;
    backend_->wake();
  }
  return ticket;
}

template <typename Range>
void DriveQueue::fill_inbox(IoOp op, const SwapFile& file, std::span<const Range> ranges,
                            TransferList& begun) {
  Transfer* const leader = begun.front();
  for (const Range& range : ranges) {
    if (range.data.empty()) continue;
    Transfer* transfer = begun.pop();
    *transfer = Transfer{};
    transfer->op = op;
    transfer->file = &file;
    // A write only reads this memory; a request has one pointer for both directions.
    transfer->data = const_cast<std::byte*>(range.data.data());
    transfer->offset_bytes = range.offset_bytes;
    transfer->size_bytes = range.data.size();
    transfer->leader = leader;
    leader->group_bytes += transfer->size_bytes;
    inbox_.push(*transfer);
  }
}

Ticket DriveQueue::begin(const SwapFile& file, std::span<const ReadRange> ranges) {
  return begin_all(IoOp::read, file, ranges);
}

Ticket DriveQueue::begin(const SwapFile& file, std::span<const WriteRange> ranges) {
  return begin_all(IoOp::write, file, ranges);
}

IoLatency DriveQueue::latency() {
  IoLatency latency;
  run_errand([&](Pump& pump, IoBackend&) { latency = pump.latency(); });
  return latency;
}

bool DriveQueue::add_memory(std::span<std::byte> memory, std::string& why_not) {
  bool added = false;
  run_errand([&](Pump&, IoBackend& backend) { added = backend.add_memory(memory, why_not); });
  return added;
}

bool DriveQueue::add_file(int fd, std::string& why_not) {
  bool added = false;
  run_errand([&](Pump&, IoBackend& backend) { added = backend.add_file(fd, why_not); });
  return added;
}

void DriveQueue::remove_memory(std::span<std::byte> memory) {
  run_errand([&](Pump&, IoBackend& backend) { backend.remove_memory(memory); });
}

void DriveQueue::remove_file(int fd) {
  run_errand([&](Pump&, IoBackend& backend) { backend.remove_file(fd); });
}

void DriveQueue::run_errand(Errand errand) {
  TicketSource source;
  Ticket ticket = source.ticket();
  {
    MutexLock lock(mutex_);
    if (broken_) {
      source.complete(broken_);
    } else {
      errands_.push_back({std::move(errand), std::move(source)});
      backend_->wake();
    }
  }
  ticket.finish();
}

// An errand's exception goes to its caller; the queue continues.
void DriveQueue::run_errands() {
  std::deque<PostedErrand> errands;
  IoBackend* backend = nullptr;
  {
    MutexLock lock(mutex_);
    if (errands_.empty()) return;
    errands.swap(errands_);
    backend = backend_.get();
  }
  for (PostedErrand& errand : errands) {
    std::exception_ptr error;
    try {
      errand.run(pump_, *backend);
    } catch (...) {
      error = std::current_exception();
    }
    errand.source.complete(error);
  }
}

void DriveQueue::run() {
  try {
    for (;;) {
      const bool stopping = admit();
      run_errands();
      if (stopping && pump_.idle()) return;
      run_round();
    }
  } catch (...) {
    break_down(std::current_exception());
  }
}

// Gives begun transfers to the pump; returns whether the queue is being destroyed.
bool DriveQueue::admit() {
  MutexLock lock(mutex_);
  while (Transfer* transfer = inbox_.pop()) pump_.add(*transfer);
  hungry_ = false;
  return stopping_;
}

// One round of the pump; then a wait when the round left nothing to do.
void DriveQueue::run_round() {
  const Pump::Progress progress = pump_.step();
  complete_finished();
  if (progress == Pump::Progress::moved) return;
  publish();
  {
    MutexLock lock(mutex_);
    if (pump_.has_room() && !inbox_.empty()) return;
    if (stopping_ && pump_.idle()) return;
    hungry_ = pump_.has_room();
  }
  pump_.wait();
}

// Handles a failed backend. The backend's destructor waits for its requests, so no buffer is in use
// when the tickets end. Every transfer from now on ends with `error`.
void DriveQueue::break_down(const std::exception_ptr& error) {
  std::unique_ptr<IoBackend> failed;
  std::deque<PostedErrand> errands;
  {
    MutexLock lock(mutex_);
    broken_ = error;
    failed = std::move(backend_);
    errands.swap(errands_);
    while (Transfer* transfer = inbox_.pop()) pump_.add(*transfer);
  }
  failed.reset();
  for (PostedErrand& errand : errands) errand.source.complete(error);
  pump_.abandon(error);
  complete_finished();
}

void DriveQueue::publish() {
  const IoCounters counters = pump_.counters();
  MutexLock lock(mutex_);
  published_ = counters;
}

// Records the leader's transfers in the trace, with the file's name without its folder.
void DriveQueue::record(const Transfer& leader) const {
  const TraceRow& row = leader.op == IoOp::read ? read_row_ : write_row_;
  if (!row.on()) return;
  const std::string_view path = leader.file->path();
  row.add(leader.op == IoOp::read ? "read" : "write", path.substr(path.rfind('/') + 1),
          leader.begun_at, TraceClock::now(),
          {{"bytes", static_cast<std::int64_t>(leader.group_bytes)},
           {"offset", static_cast<std::int64_t>(leader.offset_bytes)}});
}

void DriveQueue::complete_finished() {
  TransferList finished = pump_.take_finished();
  if (finished.empty()) return;
  publish();  // before the tickets end: whoever waited for a ticket finds its bytes counted
  TransferList idle;
  while (Transfer* transfer = finished.pop()) {
    Transfer& leader = *transfer->leader;
    std::exception_ptr error = std::exchange(transfer->error, nullptr);
    if (!leader.group_error) leader.group_error = std::move(error);
    if (transfer != &leader) idle.push(*transfer);
    if (--leader.group_left > 0) continue;
    // The caller may free file and memory once the ticket has ended; only the Transfer is used
    // afterwards.
    record(leader);
    leader.source->complete(std::exchange(leader.group_error, nullptr));
    leader.source.reset();
    idle.push(leader);
  }
  MutexLock lock(mutex_);
  idle_.append(idle);
}

}  // namespace sluice::nvme
