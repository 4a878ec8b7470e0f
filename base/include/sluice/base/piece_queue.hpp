#pragma once
// PieceQueue: loops whose bodies, the pieces, are taken by threads as they come free. Loops are
// added while others run, so no thread waits at the end of one loop for the other threads. Not an
// Executor: it borrows the executor's threads while it has pieces. Which thread runs which piece is
// unspecified, so results must not depend on it.

#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "sluice/base/executor.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/trace.hpp"

namespace sluice {

class Numa;

// One loop over pieces.
struct PieceLoop {
  // Loops with a lower number come first; loops with equal numbers in the order of add().
  std::size_t priority = 0;
  std::size_t count = 0;  // pieces, at least 1
  // An address that piece i works on, as for Executor::for_each_near(). Empty: any node.
  std::function<const void*(std::size_t)> memory_of = {};
  // Runs piece i, on any thread, beside other pieces. Must not start a loop on the executor.
  std::function<void(std::size_t)> body = {};
  // Called once, after all pieces have ended, on the thread that ran the last one. The argument is
  // the exception of the lowest piece that threw, or null. Must not throw. May add loops.
  std::function<void(const std::exception_ptr&)> ended = {};
  // The name of its spans in the trace. The texts outlive the loop.
  const char* what = "";
  std::string subject = {};
};

// Thread-safe, except run(), which one thread at a time calls. The destructor expects no pieces.
class PieceQueue {
 public:
  // `executor` outlives the queue. `row`: has a span for each stretch of time in which pieces of
  // one loop were taken.
  explicit PieceQueue(Executor& executor, TraceRow row = {});
  // `numa`: the description of the machine, given by tests; outlives the queue.
  PieceQueue(Executor& executor, const Numa& numa, TraceRow row);
  ~PieceQueue();
  PieceQueue(const PieceQueue&) = delete;
  PieceQueue& operator=(const PieceQueue&) = delete;

  // Adds a loop. Its pieces run in this or the next run(). Does not block. Throws InvalidArgument
  // for a count of 0.
  void add(PieceLoop loop);
  // Whether no piece waits for a thread.
  bool empty() const;
  // Runs pieces on the executor's threads, the caller's among them. Returns when pieces that were
  // taken have ended, and none waits or another caller wants the executor: call it until empty().
  // `between`: called on the caller's thread after each of its pieces; may add loops. Blocks.
  void run(const std::function<void()>& between = {});
  // Seconds spent in run() so far.
  double busy_seconds() const;

 private:
  struct Active;
  struct Piece {
    std::shared_ptr<Active> loop;  // shared with the threads that run its other pieces
    std::size_t index = 0;
  };
  struct Span {
    std::shared_ptr<Active> loop;
    TraceClock::time_point begin;
    std::int64_t pieces = 0;
  };
  std::optional<Piece> take(bool ran_before);
  void run_piece(const Piece& piece);
  void note_taken(const std::shared_ptr<Active>& loop) SLUICE_REQUIRES(mutex_);
  void end_span() SLUICE_REQUIRES(mutex_);
  void count_busy() SLUICE_REQUIRES(mutex_);

  Executor& executor_;
  const Numa& numa_;
  const TraceRow row_;
  mutable Mutex mutex_;
  std::multimap<std::size_t, std::shared_ptr<Active>> waiting_ SLUICE_GUARDED_BY(mutex_);
  std::size_t pieces_ SLUICE_GUARDED_BY(mutex_) = 0;   // that wait for a thread
  std::size_t threads_ SLUICE_GUARDED_BY(mutex_) = 0;  // that this run() asked for
  // The threads of this run() leave: one of them found no piece, or more threads are needed.
  bool closed_ SLUICE_GUARDED_BY(mutex_) = true;
  Span span_ SLUICE_GUARDED_BY(mutex_);
  double busy_seconds_ SLUICE_GUARDED_BY(mutex_) = 0;
  TraceClock::time_point counted_until_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
