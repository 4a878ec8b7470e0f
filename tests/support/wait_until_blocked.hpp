#pragma once
// Lets a test order itself after "that thread is now waiting", without sleeping and hoping: the
// kernel says whether a thread sleeps.

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

// Blocks until `thread` of this process sleeps in the kernel. Meaningful only where the one thing
// it can sleep in is what the test is about.
inline void wait_until_blocked(long thread) {
  while (!is_blocked(thread)) std::this_thread::yield();
}

}  // namespace sluice::test
