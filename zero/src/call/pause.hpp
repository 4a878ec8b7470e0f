#pragma once
// The pause between two looks at work that another library does. Not installed. Thread-safe.

#include <chrono>
#include <thread>

namespace sluice::zero {

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

}  // namespace sluice::zero
