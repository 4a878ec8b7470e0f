#pragma once
// Waits until a thread blocks: the kernel tells whether a thread sleeps, so a test need not guess a
// delay.

#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

namespace sluice::test {

inline long thread_id() {
  return ::syscall(SYS_gettid);
}

inline bool is_blocked(long thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string line((std::istreambuf_iterator<char>(stat)), {});
  const auto name_end = line.rfind(')');  // the name may hold spaces; the state follows it
  return name_end != std::string::npos && line.substr(name_end + 2, 1) == "S";
}

// Blocks until `thread` of this process sleeps in the kernel. Useful only where the thread can
// sleep in one place, the one under test.
inline void wait_until_blocked(long thread) {
  while (!is_blocked(thread)) std::this_thread::yield();
}

}  // namespace sluice::test
