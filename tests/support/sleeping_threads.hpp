#pragma once
// Tells whether every other thread of the process sleeps: then nothing happens any more until the
// caller does something. Thread-safe: free functions without state.

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>

namespace sluice::test {

// The kernel's letter for the state of a thread of this process; 0: the thread is gone.
inline char state_of_thread(const char* id) {
  const int file = ::open((std::string("/proc/self/task/") + id + "/stat").c_str(), O_RDONLY);
  if (file < 0) return 0;
  std::array<char, 128> text{};
  const ssize_t count = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  const char* name_end = count > 0 ? std::strrchr(text.data(), ')') : nullptr;
  return name_end == nullptr || name_end[1] == 0 ? '\0' : name_end[2];
}

// `self`: id of the calling thread. A thread that runs, waits for a core or waits for a drive does
// not sleep.
inline bool others_sleep(long self) {
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir("/proc/self/task"), &::closedir);
  const std::string own = std::to_string(self);
  while (const dirent* task = tasks == nullptr ? nullptr : ::readdir(tasks.get())) {
    if (task->d_name[0] == '.' || own == task->d_name) continue;
    const char state = state_of_thread(task->d_name);
    if (state == 'R' || state == 'D') return false;
  }
  return true;
}

}  // namespace sluice::test
