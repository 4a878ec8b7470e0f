#pragma once
// The pause between two looks at work that another library, or another thread, does. Not installed.
// Thread-safe.

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::zero {

// Some 20 ns, in which the other thread of this core has the core to itself.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// `waited`: since the wait began. MPI makes progress only while it is looked at, so the first looks
// follow at once; a long wait leaves the core to others.
inline void pause_between_looks(std::chrono::steady_clock::duration waited) {
  constexpr std::chrono::milliseconds kBusy{2};
  constexpr std::chrono::milliseconds kShort{100};
  if (waited < kBusy) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(waited < kShort ? 20 : 200));
  }
}

// As above, for messages of ranks on several hosts. Sockets take and bring bytes while nobody
// looks, so a look has to come before their buffers are full or empty, and no earlier: it wakes a
// core that computes, which costs some 20 µs on a virtual machine.
inline void pause_for_network(std::chrono::steady_clock::duration waited) {
  using std::chrono::microseconds;
  constexpr std::chrono::steady_clock::duration kLeast = microseconds(50);
  constexpr std::chrono::steady_clock::duration kMost = microseconds(200);
  std::this_thread::sleep_for(std::clamp(waited / 4, kLeast, kMost));
}

}  // namespace sluice::zero
