#pragma once
// UnitMarks: whether a work on a unit's states has failed, and whether the store lacks bytes that
// memory has. Thread-safe.

#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <vector>

#include "sluice/base/mutex.hpp"

namespace sluice::train {

class UnitMarks {
 public:
  explicit UnitMarks(std::size_t unit_count) : only_in_memory_(unit_count, false) {}

  // Throws the error of the first unit that has one.
  void check_failures() const {
    MutexLock lock(mutex_);
    if (!failed_.empty()) std::rethrow_exception(failed_.begin()->second);
  }
  bool has_failed() const {
    MutexLock lock(mutex_);
    return !failed_.empty();
  }
  void forget_failure(std::size_t unit) {
    MutexLock lock(mutex_);
    failed_.erase(unit);
  }
  // For TileWork::ended: keeps the error of a work that may have left the unit half changed.
  std::function<void(const std::exception_ptr&)> failing(std::size_t unit) {
    return [this, unit](const std::exception_ptr& error) {
      if (!error) return;
      MutexLock lock(mutex_);
      failed_.emplace(unit, error);
    };
  }

  // Whether the store lacks the bytes that the last update gave to the cached parts.
  bool is_only_in_memory(std::size_t unit) const {
    MutexLock lock(mutex_);
    return only_in_memory_[unit];
  }
  void set_only_in_memory(std::size_t unit, bool is_so) {
    MutexLock lock(mutex_);
    only_in_memory_[unit] = is_so;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::size_t, std::exception_ptr> failed_ SLUICE_GUARDED_BY(mutex_);  // by unit
  std::vector<bool> only_in_memory_ SLUICE_GUARDED_BY(mutex_);                  // by unit
};

}  // namespace sluice::train
