#pragma once
// Waits until a thread blocks: the kernel tells whether a thread sleeps, so a test need not guess a
// delay.

#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "sleeping_threads.hpp"

namespace sluice::test {

inline long thread_id() {
  return ::syscall(SYS_gettid);
}

// Blocks until `thread` of this process sleeps in the kernel. Useful only where the thread can
// sleep in one place, the one under test.
inline void wait_until_blocked(long thread) {
  const std::string id = std::to_string(thread);
  while (state_of_thread(id.c_str()) != 'S') std::this_thread::yield();
}

}  // namespace sluice::test
