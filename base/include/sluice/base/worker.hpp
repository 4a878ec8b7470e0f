#pragma once
// One thread that runs the tasks it is given in order: the shape of a stream. Used for the copies
// of the host device, for fetching and storing, and for the optimizer's updates.
//
// Thread-safe: any thread may post. Tasks run on the worker's own thread; a task must not wait for
// a later task of the same worker.

#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "sluice/base/mutex.hpp"
#include "sluice/base/ticket.hpp"

namespace sluice {

class Worker {
 public:
  // `name` (at most 15 characters are kept) shows in debuggers and in /proc.
  explicit Worker(const std::string& name);
  // Runs what was posted, then joins.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Queues a task; does not block. What the task throws goes to its ticket.
  Ticket begin(std::function<void()> task);
  // Seconds the worker has spent inside tasks.
  double busy_seconds() const;

 private:
  struct Item {
    std::function<void()> task;
    TicketSource done;
  };
  void run();

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Item> queue_ SLUICE_GUARDED_BY(mutex_);
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  double busy_seconds_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace sluice
