#pragma once
// An imaginary machine with several NUMA nodes.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "numa.hpp"

namespace sluice::test {

using Nodes = std::vector<int>;

// Addresses are indices into `node_of_memory`; each thread sets its own node.
class FakeNuma final : public Numa {
 public:
  FakeNuma(int nodes, Nodes node_of_memory)
      : nodes_(nodes), node_of_memory_(std::move(node_of_memory)) {}

  static inline thread_local int here = 0;

  int nodes() const override { return nodes_; }
  int current_node() const override { return here; }
  Nodes nodes_of(std::span<const void* const> addresses) const override {
    Nodes out;
    for (const void* address : addresses) {
      const std::ptrdiff_t at = static_cast<const char*>(address) - memory();
      out.push_back(node_of_memory_[static_cast<std::size_t>(at)]);
    }
    return out;
  }
  const void* memory_of(std::size_t i) const { return memory() + i; }
  std::size_t count() const { return node_of_memory_.size(); }

 private:
  static const char* memory() {
    static const char bytes[256] = {};
    return bytes;
  }
  int nodes_;
  Nodes node_of_memory_;
};

}  // namespace sluice::test
