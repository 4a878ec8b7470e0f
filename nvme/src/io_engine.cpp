#include "sluice/nvme/io_engine.hpp"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pump.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/mutex.hpp"

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
  options.depth = std::min(options.depth, backend->depth());
  return options;
}

}  // namespace

// Thread-safe.
class IoEngine::Impl {
 public:
  Impl(std::unique_ptr<IoBackend> backend, IoEngineOptions options)
      : options_(checked_options(backend.get(), options)),
        backend_name_(backend->name()),
        backend_(std::move(backend)),
        pump_(*backend_, options_),
        thread_([this] { run(); }) {
    ::pthread_setname_np(thread_.native_handle(), "sluice-io");
  }

  ~Impl() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      if (backend_) backend_->wake();
    }
    thread_.join();
  }

  std::string_view backend_name() const { return backend_name_; }
  const IoEngineOptions& options() const { return options_; }

  // Range: ReadRange or WriteRange.
  template <typename Range>
  Ticket begin(IoOp op, const SwapFile& file, std::span<const Range> ranges);

  IoCounters counters() const {
    MutexLock lock(mutex_);
    return published_;
  }

  using Errand = std::function<void(Pump& pump, IoBackend& backend)>;
  // Has the engine's thread do something between two rounds; blocks until it has. Throws what the
  // errand throws, or why the backend has failed.
  void run_errand(Errand errand);

 private:
  struct PostedErrand {
    Errand run;
    TicketSource source;
  };
  Transfer& unused_transfer() SLUICE_REQUIRES(mutex_);
  void check_range(const SwapFile& file, std::uint64_t offset_bytes,
                   std::uint64_t size_bytes) const;
  void run();
  void drive();
  bool admit();
  void run_errands();
  void publish();
  void complete_finished();
  void break_down(const std::exception_ptr& error);

  const IoEngineOptions options_;
  const std::string backend_name_;

  mutable Mutex mutex_;
  TransferList inbox_ SLUICE_GUARDED_BY(mutex_);
  TransferList unused_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Transfer>> transfers_ SLUICE_GUARDED_BY(mutex_);  // owns all of them
  std::deque<PostedErrand> errands_ SLUICE_GUARDED_BY(mutex_);
  // The engine waits and could start another transfer at once: a new one must wake it. While its
  // queue is full it looks for new ones at the next completion anyway.
  bool hungry_ SLUICE_GUARDED_BY(mutex_) = false;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::exception_ptr broken_ SLUICE_GUARDED_BY(mutex_);  // why there is no backend any more
  IoCounters published_ SLUICE_GUARDED_BY(mutex_);
  // For wake(); its other verbs are the pump's.
  std::unique_ptr<IoBackend> backend_ SLUICE_GUARDED_BY(mutex_);

  Pump pump_;  // the engine's thread only

  std::thread thread_;
};

void IoEngine::Impl::check_range(const SwapFile& file, std::uint64_t offset_bytes,
                                 std::uint64_t size_bytes) const {
  constexpr auto kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  // Rounded up to whole blocks, the end must still be an offset.
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

// One that nobody uses; throws before it has changed anything.
Transfer& IoEngine::Impl::unused_transfer() {
  if (unused_.empty()) {
    transfers_.push_back(std::make_unique<Transfer>());
    unused_.push(*transfers_.back());
  }
  return *unused_.pop();
}

template <typename Range>
Ticket IoEngine::Impl::begin(IoOp op, const SwapFile& file, std::span<const Range> ranges) {
  std::size_t count = 0;
  for (const Range& range : ranges) {
    check_range(file, range.offset_bytes, range.data.size());
    count += range.data.empty() ? 0 : 1;
  }
  if (count == 0) return Ticket();
  TicketSource source;
  MutexLock lock(mutex_);
  if (broken_) {
    Ticket ticket = source.ticket();
    source.complete(broken_);
    return ticket;
  }
  TransferList begun;
  try {
    for (std::size_t i = 0; i < count; ++i) begun.push(unused_transfer());
  } catch (...) {
    unused_.append(begun);
    throw;
  }
  Ticket ticket = source.ticket();  // nothing throws from here on: a dropped ticket would wait
  Transfer* const leader = begun.front();
  for (const Range& range : ranges) {
    if (range.data.empty()) continue;
    Transfer* transfer = begun.pop();
    *transfer = Transfer{};
    transfer->op = op;
    transfer->file = &file;
    // Written from, never to, by a write: a request has one pointer for both directions.
    transfer->data = const_cast<std::byte*>(range.data.data());
    transfer->offset_bytes = range.offset_bytes;
    transfer->size_bytes = range.data.size();
    transfer->leader = leader;
    inbox_.push(*transfer);
  }
  leader->source = std::move(source);
  leader->group_left = count;
  if (hungry_) {
    hungry_ = false;
    backend_->wake();
  }
  return ticket;
}

void IoEngine::Impl::run_errand(Errand errand) {
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

// An errand's failure is its caller's; the engine goes on.
void IoEngine::Impl::run_errands() {
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

void IoEngine::Impl::run() {
  try {
    for (;;) {
      const bool stopping = admit();
      run_errands();
      if (stopping && pump_.idle()) return;
      drive();
    }
  } catch (...) {
    break_down(std::current_exception());
  }
}

// Takes what callers have begun; returns whether the engine is being destroyed.
bool IoEngine::Impl::admit() {
  MutexLock lock(mutex_);
  while (Transfer* transfer = inbox_.pop()) pump_.add(*transfer);
  hungry_ = false;
  return stopping_;
}

// One round of the pump, then a wait when that has left nothing to do.
void IoEngine::Impl::drive() {
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

// The backend itself has failed. Its destructor waits for what it holds, so the buffers are free
// again when the tickets end; from now on every transfer ends with the same error.
void IoEngine::Impl::break_down(const std::exception_ptr& error) {
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

void IoEngine::Impl::publish() {
  const IoCounters counters = pump_.counters();
  MutexLock lock(mutex_);
  published_ = counters;
}

void IoEngine::Impl::complete_finished() {
  TransferList finished = pump_.take_finished();
  if (finished.empty()) return;
  publish();  // before the tickets end: who has waited for a ticket finds its bytes counted
  TransferList unused;
  while (Transfer* transfer = finished.pop()) {
    Transfer& leader = *transfer->leader;
    std::exception_ptr error = std::exchange(transfer->error, nullptr);
    if (!leader.group_error) leader.group_error = std::move(error);
    if (transfer != &leader) unused.push(*transfer);
    if (--leader.group_left > 0) continue;
    // Nothing of the transfers is touched once their ticket has ended, but for our own memory of
    // them.
    leader.source->complete(std::exchange(leader.group_error, nullptr));
    leader.source.reset();
    unused.push(leader);
  }
  MutexLock lock(mutex_);
  unused_.append(unused);
}

IoEngine::IoEngine(std::unique_ptr<IoBackend> backend, IoEngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(backend), options)) {}

IoEngine::~IoEngine() = default;

std::string_view IoEngine::backend_name() const {
  return impl_->backend_name();
}

const IoEngineOptions& IoEngine::options() const {
  return impl_->options();
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
  return impl_->begin(IoOp::read, file, ranges);
}

Ticket IoEngine::begin_writes(const SwapFile& file, std::span<const WriteRange> ranges) {
  return impl_->begin(IoOp::write, file, ranges);
}

IoCounters IoEngine::counters() const {
  return impl_->counters();
}

IoLatency IoEngine::latency() const {
  IoLatency latency;
  impl_->run_errand([&](Pump& pump, IoBackend&) { latency = pump.latency(); });
  return latency;
}

Registration IoEngine::register_memory(std::span<std::byte> memory) {
  Registration made;
  bool active = false;
  impl_->run_errand(
      [&](Pump&, IoBackend& backend) { active = backend.add_memory(memory, made.why_not_); });
  made.memory_ = memory;
  if (active) made.engine_ = this;
  return made;
}

Registration IoEngine::register_file(const SwapFile& file) {
  Registration made;
  bool active = false;
  impl_->run_errand(
      [&](Pump&, IoBackend& backend) { active = backend.add_file(file.fd(), made.why_not_); });
  made.fd_ = file.fd();
  if (active) made.engine_ = this;
  return made;
}

Registration& Registration::operator=(Registration&& other) noexcept {
  end();
  engine_ = std::exchange(other.engine_, nullptr);
  memory_ = other.memory_;
  fd_ = other.fd_;
  why_not_ = std::move(other.why_not_);
  return *this;
}

void Registration::end() noexcept {
  IoEngine* engine = std::exchange(engine_, nullptr);
  if (engine == nullptr) return;
  try {
    engine->impl_->run_errand([this](Pump&, IoBackend& backend) {
      if (fd_ >= 0) {
        backend.remove_file(fd_);
      } else {
        backend.remove_memory(memory_);
      }
    });
  } catch (const std::exception& error) {
    // The backend is gone, and what was registered with it.
    log(LogLevel::debug, std::string("end of a registration: ") + error.what());
  }
}

}  // namespace sluice::nvme
