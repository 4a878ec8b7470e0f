#pragma once
// The threads and cores that the system gives this process. Ask first: some libraries wait for ever
// for threads that they do not get. Thread-safe: free functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

namespace sluice {

// The number of cores that this process may run on. Empty where the system refuses to say; hwloc
// then asks without end, so it must not be used.
std::optional<int> allowed_cores();

// How a thread shares cores with others. A background thread steps back for a thread that wakes
// where every core is busy: it has a tenth of that thread's share, by its nice value. Without other
// threads it is as fast as a normal one.
enum class ThreadPriority { normal, background };

// For the calling thread; a background thread stays one. Where the system refuses, nothing changes.
void take_priority(ThreadPriority priority) noexcept;

// Starts a thread that runs `body`, which must not throw. `name` is its name in debuggers and in
// /proc; Linux takes the first 15 characters. Throws Error when the system refuses the thread.
std::thread start_thread(const std::string& name, std::function<void()> body);

// Starts `count` threads at once, which do nothing, and ends them. Throws Error with the limits
// when the system refuses one. Blocks for some 20 microseconds a thread.
void check_threads(int count);

// Forks between the first call and this process. Equal values mean: the same process. A forked
// child has the memory of its parent, but none of its threads: work for a thread that was made
// before the fork would never end there.
std::uint64_t fork_count() noexcept;

}  // namespace sluice
