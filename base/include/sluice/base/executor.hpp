#pragma once
// Runs a loop body on a fixed number of threads: a oneTBB arena, or plain threads. The split of the
// work is the caller's (chunks); which thread runs which chunk is not specified, so results must
// not depend on it.

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace sluice {

// Thread-safe: several callers may run loops at once; they share the threads.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  // Threads that work on a loop, the caller's included.
  virtual int threads() const = 0;
  // Calls body(0) ... body(count - 1), each once, and blocks until all have returned. The first
  // exception (lowest index that threw) is rethrown here after the others have ended. A body must
  // not start a loop on the same executor.
  virtual void for_each(std::size_t count, const std::function<void(std::size_t)>& body) = 0;
  // The same for bodies that work on memory: on a machine of several NUMA nodes a thread first
  // takes those whose `memory_of`, an address (null: anywhere), is on the node that it runs on, and
  // then helps with the others. Threads are not bound to a node. A page counts where it was first
  // touched, or moved to since.
  virtual void for_each_near(std::size_t count,
                             const std::function<const void*(std::size_t)>& memory_of,
                             const std::function<void(std::size_t)>& body) = 0;
};

enum class ExecutorKind { automatic, tbb, plain_threads };

// `threads` of at least 1; with 1 the caller's thread does all. Throws InvalidArgument on less, and
// when oneTBB is asked for and was not built in; Error when the system refuses a plain thread.
// `automatic` takes oneTBB where it was built in.
std::unique_ptr<Executor> make_executor(int threads, ExecutorKind kind = ExecutorKind::automatic);

}  // namespace sluice
