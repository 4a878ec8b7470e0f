#include "loop.hpp"

namespace sluice {

void Loop::run_one(std::size_t index) {
  try {
    body_(index);
  } catch (...) {
    MutexLock lock(mutex_);
    if (index < error_index_) {
      error_index_ = index;
      error_ = std::current_exception();
    }
  }
}

void Loop::rethrow() {
  MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

NearLoop::NearLoop(const Numa& numa, std::size_t count,
                   const std::function<const void*(std::size_t)>& memory_of,
                   const std::function<void(std::size_t)>& body)
    : Loop(count, body), numa_(numa), lists_(static_cast<std::size_t>(numa.nodes()) + 1) {
  std::vector<const void*> addresses;
  addresses.reserve(count);
  for (std::size_t i = 0; i < count; ++i) addresses.push_back(memory_of(i));
  const std::vector<int> nodes = numa.nodes_of(addresses);
  for (std::size_t i = 0; i < count; ++i) {
    List& list =
        nodes[i] == Numa::kUnknown ? lists_.back() : lists_[static_cast<std::size_t>(nodes[i])];
    list.bodies.push_back(i);
  }
}

void NearLoop::run() {
  // The node is read before each body: the system may have moved the thread.
  for (;;) {
    const auto own = static_cast<std::size_t>(numa_.current_node());
    bool ran = false;
    for (std::size_t k = 0; k < lists_.size() && !ran; ++k)
      ran = run_next_of(lists_[(own + k) % lists_.size()]);
    if (!ran) return;
  }
}

bool NearLoop::run_next_of(List& list) {
  if (list.next.load() >= list.bodies.size()) return false;
  const std::size_t next = list.next.fetch_add(1);
  if (next >= list.bodies.size()) return false;
  run_one(list.bodies[next]);
  return true;
}

}  // namespace sluice
