#pragma once
// DriveQueue: the transfers of one drive, and the thread that moves them through the backend.
// IoEngine has one queue for each drive. Owns the backend and all Transfers.
//
// Thread-safe.

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/pump.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_counters.hpp"
#include "sluice/nvme/io_engine_options.hpp"
#include "sluice/nvme/io_ranges.hpp"

namespace sluice::nvme {

class DriveQueue {
 public:
  // Throws InvalidArgument on options out of range.
  DriveQueue(std::unique_ptr<IoBackend> backend, IoEngineOptions options);
  ~DriveQueue();  // blocks until every transfer has ended
  DriveQueue(const DriveQueue&) = delete;
  DriveQueue& operator=(const DriveQueue&) = delete;

  std::string_view backend_name() const { return backend_name_; }
  const IoEngineOptions& options() const { return options_; }

  // As IoEngine::begin_reads and begin_writes.
  Ticket begin(const SwapFile& file, std::span<const ReadRange> ranges);
  Ticket begin(const SwapFile& file, std::span<const WriteRange> ranges);

  IoCounters counters() const {
    MutexLock lock(mutex_);
    return published_;
  }

  // Each call below blocks until the thread has answered, and throws the error of a failed backend.
  IoLatency latency();
  // Return false when the backend refuses, with the reason in `why_not`.
  bool add_memory(std::span<std::byte> memory, std::string& why_not);
  bool add_file(int fd, std::string& why_not);
  void remove_memory(std::span<std::byte> memory);
  void remove_file(int fd);

 private:
  using Errand = std::function<void(Pump& pump, IoBackend& backend)>;
  // Runs `errand` on the thread between two rounds. Blocks until it has run. Throws the errand's
  // exception, or the error of a failed backend.
  void run_errand(Errand errand);

  struct PostedErrand {
    Errand run;
    TicketSource source;
  };
  template <typename Range>
  Ticket begin_all(IoOp op, const SwapFile& file, std::span<const Range> ranges);
  // Moves the transfers of `begun` to the inbox, one for each range that is not empty.
  template <typename Range>
  void fill_inbox(IoOp op, const SwapFile& file, std::span<const Range> ranges, TransferList& begun)
      SLUICE_REQUIRES(mutex_);
  TransferList take_unused(std::size_t count) SLUICE_REQUIRES(mutex_);
  void check_range(const SwapFile& file, std::uint64_t offset_bytes,
                   std::uint64_t size_bytes) const;
  void run();
  void drive();
  bool admit();
  void run_errands();
  void publish();
  void complete_finished();
  void record(const Transfer& leader) const;
  void break_down(const std::exception_ptr& error);

  const IoEngineOptions options_;
  const TraceRow read_row_;
  const TraceRow write_row_;
  const std::string backend_name_;

  mutable Mutex mutex_;
  TransferList inbox_ SLUICE_GUARDED_BY(mutex_);
  TransferList unused_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Transfer>> transfers_ SLUICE_GUARDED_BY(mutex_);  // owns all of them
  std::deque<PostedErrand> errands_ SLUICE_GUARDED_BY(mutex_);
  // Set while the thread waits with room for another transfer: a new transfer must wake the thread.
  // With a full queue, the thread looks for new transfers at the next completion anyway.
  bool hungry_ SLUICE_GUARDED_BY(mutex_) = false;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::exception_ptr broken_ SLUICE_GUARDED_BY(mutex_);  // the error of the failed backend
  IoCounters published_ SLUICE_GUARDED_BY(mutex_);
  // The queue calls wake(); the pump calls the other verbs.
  std::unique_ptr<IoBackend> backend_ SLUICE_GUARDED_BY(mutex_);

  Pump pump_;  // confined to the thread

  std::thread thread_;
};

}  // namespace sluice::nvme
