#pragma once
// Worker: one thread that runs tasks in the order of their posting, like a stream. The host
// device's copies, gathers, reductions, calls that a communicator begins, and the optimizer's
// updates run on workers.
//
// Thread-safe: any thread may post. A task must not wait for a later task of its own worker. A
// forked child has no such thread: it does not destroy a worker of its parent.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "sluice/base/mutex.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/base/ticket.hpp"

namespace sluice {

class Worker {
 public:
  // `name`: of its thread; start_thread().
  explicit Worker(const std::string& name, ThreadPriority priority = ThreadPriority::normal);
  // Runs the tasks that were posted, then joins the thread. Blocks.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Queues a task. Does not block. The ticket gets the task's exception. Throws InvalidArgument in
  // a forked child.
  Ticket begin(std::function<void()> task);

 private:
  struct Item {
    std::function<void()> task;
    TicketSource done;
  };
  void run();

  const std::uint64_t forks_;  // when it was made
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Item> queue_ SLUICE_GUARDED_BY(mutex_);
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice
