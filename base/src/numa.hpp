#pragma once
// Which NUMA node a thread runs on, and which one memory lies on. Thread-safe.

#include <memory>
#include <span>
#include <vector>

namespace sluice {

class Numa {
 public:
  static constexpr int kUnknown = -1;

  virtual ~Numa() = default;
  // At least 1; nodes are numbered from 0, whatever the system calls them.
  virtual int nodes() const = 0;
  // Of the processor that the calling thread is on now; 0 where the system does not say.
  virtual int current_node() const = 0;
  // Of the page at each address; kUnknown for null, for pages that nobody has touched, and for all
  // where the system does not say (a container may deny it).
  virtual std::vector<int> nodes_of(std::span<const void* const> addresses) const = 0;
};

// The machine as hwloc sees it; a build without hwloc sees one node. Of memory without processors
// of its own (HBM beside DRAM, CXL) that which is as near as a node's own counts as that node's.
std::unique_ptr<Numa> read_numa();
// The same, read once.
const Numa& machine_numa();

}  // namespace sluice
