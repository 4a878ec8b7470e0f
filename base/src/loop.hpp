#pragma once
// Loop: one loop of an executor. Its threads claim bodies until none is left; its error is that of
// the lowest index that threw. Thread-safe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "numa.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice {

class Loop {
 public:
  Loop(std::size_t count, const std::function<void(std::size_t)>& body)
      : count_(count), body_(body) {}
  virtual ~Loop() = default;

  std::size_t count() const { return count_; }
  // Runs bodies until none is left. Every thread of the loop calls it.
  virtual void run() {
    for (std::size_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) run_one(i);
  }
  void run_one(std::size_t index);
  // Throws the loop's error. Call after all threads have left run().
  void rethrow();

 private:
  const std::size_t count_;
  const std::function<void(std::size_t)>& body_;
  std::atomic<std::size_t> next_{0};
  Mutex mutex_;
  std::size_t error_index_ SLUICE_GUARDED_BY(mutex_) = SIZE_MAX;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

// A thread takes the bodies whose memory is on its own node first, in order. Then it takes bodies
// of other nodes and of unknown nodes, so no thread idles while bodies are left.
class NearLoop final : public Loop {
 public:
  NearLoop(const Numa& numa, std::size_t count,
           const std::function<const void*(std::size_t)>& memory_of,
           const std::function<void(std::size_t)>& body);
  void run() override;

 private:
  struct List {
    std::vector<std::size_t> bodies;
    std::atomic<std::size_t> next{0};
  };
  bool run_next_of(List& list);

  const Numa& numa_;
  std::vector<List> lists_;  // one for each node, the last for unknown nodes
};

}  // namespace sluice
