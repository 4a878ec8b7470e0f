#pragma once
// Executor: runs the bodies of a loop on a fixed number of threads, a oneTBB arena or plain
// threads. The caller splits the work into bodies. Which thread runs which body is unspecified, so
// results must not depend on it.

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "sluice/base/threads.hpp"

namespace sluice {

// The creator owns the executor; no loop may run when it is destroyed. Thread-safe: several callers
// may run loops at once; the loops share the threads. A forked child has none of these threads: a
// loop there does not end, unless the executor has one thread.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  // Threads that work on a loop, including the caller's.
  virtual int threads() const = 0;
  // Whether loops of several callers run or wait now. A body of a long loop may end early to give
  // way.
  virtual bool is_contended() const = 0;
  // Calls body(0) ... body(count - 1), each once, and blocks until all have returned. Then rethrows
  // the exception of the lowest index that threw. A body must not start a loop on the same
  // executor.
  virtual void for_each(std::size_t count, const std::function<void(std::size_t)>& body) = 0;
  // Like for_each(), for bodies that work on memory: on a machine with several NUMA nodes, a thread
  // first takes the bodies whose memory lies on the thread's current node, then the others.
  // memory_of(i): an address that body(i) works on; null means any node. A page lies on the node
  // where it was first touched, or to which it was moved. Threads are not bound to nodes.
  virtual void for_each_near(std::size_t count,
                             const std::function<const void*(std::size_t)>& memory_of,
                             const std::function<void(std::size_t)>& body) = 0;
};

enum class ExecutorKind { automatic, tbb, plain_threads };

// Makes an executor of `threads` threads, at least 1; with 1, the caller's thread does all the
// work. `priority` is that of the executor's own threads; callers keep theirs. `automatic` takes
// oneTBB where this build has it, else plain threads. Throws InvalidArgument when `threads` is
// below 1, or when this build lacks the requested oneTBB. Throws Error when the system refuses a
// plain thread.
std::unique_ptr<Executor> make_executor(int threads, ExecutorKind kind = ExecutorKind::automatic,
                                        ThreadPriority priority = ThreadPriority::normal);

}  // namespace sluice
