#pragma once
// A store of ranks that are threads of one process.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "sluice/base/mutex.hpp"
#include "sluice/zero/nccl.hpp"

namespace sluice::zero::test {

// Thread-safe.
class MemoryStore final : public RankStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    MutexLock lock(mutex_);
    values_[key] = value;
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::duration<double> limit) override {
    const auto end = std::chrono::steady_clock::now() + limit;
    for (;;) {
      {
        MutexLock lock(mutex_);
        if (const auto found = values_.find(key); found != values_.end()) return found->second;
      }
      if (std::chrono::steady_clock::now() >= end) return std::nullopt;
      std::this_thread::yield();
    }
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::string> values_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::zero::test
