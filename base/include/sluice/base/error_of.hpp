#pragma once
// An exception as a value. Thread-safe: a free function without state.

#include <exception>
#include <utility>

namespace sluice {

// Calls `work()` and returns the exception it throws; null when it throws none.
template <typename Work>
std::exception_ptr error_of(Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace sluice
