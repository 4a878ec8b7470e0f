#pragma once
// FreeRuns: the free runs of a range of offsets, cut by best fit; adjacent free runs are merged.
// Small blocks (below kPageBytes) are cut from the end of a run, large blocks from its begin, so
// that the two sizes mix less. Knows offsets only, no memory. Not installed. Thread-compatible:
// callers synchronise.

#include <cassert>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {

class FreeRuns {
 public:
  struct Run {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  // Cuts `size` from the smallest run that has it; empty where none has. A large block starts at a
  // multiple of kPageBytes.
  std::optional<std::uint64_t> take(std::uint64_t size) {
    const bool small = size < kPageBytes;
    for (auto it = by_size_.lower_bound({size, 0}); it != by_size_.end(); ++it) {
      const auto [run_size, run_begin] = *it;
      const std::uint64_t run_end = run_begin + run_size;
      const std::uint64_t begin = small ? run_end - size : align_up(run_begin, kPageBytes);
      if (begin + size > run_end) continue;
      remove(by_offset_.find(run_begin));
      add({run_begin, begin});
      add({begin + size, run_end});
      return begin;
    }
    return std::nullopt;
  }
  // Adds a run that is free from now on; joins it with its free neighbours.
  void give(Run run) {
    const auto after = by_offset_.lower_bound(run.begin);
    const auto before = after == by_offset_.begin() ? by_offset_.end() : std::prev(after);
    assert(after == by_offset_.end() || after->first >= run.end);
    assert(before == by_offset_.end() || before->first + before->second <= run.begin);
    const bool joins_after = after != by_offset_.end() && after->first == run.end;
    const bool joins_before =
        before != by_offset_.end() && before->first + before->second == run.begin;
    if (joins_after) {
      run.end += after->second;
      remove(after);
    }
    if (joins_before) {
      run.begin = before->first;
      remove(before);
    }
    add(run);
  }
  // The run with the largest offsets; empty without one.
  Run last() const {
    if (by_offset_.empty()) return {};
    const auto& [begin, size] = *by_offset_.rbegin();
    return {begin, begin + size};
  }
  // Removes the end of the last run, from `begin` on.
  void cut_last(std::uint64_t begin) {
    const Run run = last();
    remove(std::prev(by_offset_.end()));
    add({run.begin, begin});
  }
  std::uint64_t total() const { return total_; }
  std::uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  using Runs = std::map<std::uint64_t, std::uint64_t>;  // offset to size

  void add(const Run& run) {
    if (run.begin == run.end) return;
    by_size_.emplace(run.end - run.begin, run.begin);
    by_offset_.emplace(run.begin, run.end - run.begin);
    total_ += run.end - run.begin;
  }
  void remove(Runs::iterator run) {
    total_ -= run->second;
    by_size_.erase({run->second, run->first});
    by_offset_.erase(run);
  }

  Runs by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // size, offset
  std::uint64_t total_ = 0;
};

}  // namespace sluice::offload
