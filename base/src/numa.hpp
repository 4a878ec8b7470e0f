#pragma once
// Numa: the NUMA nodes of a machine, of threads and of memory. Thread-safe.

#include <memory>
#include <span>
#include <vector>

namespace sluice {

class Numa {
 public:
  static constexpr int kUnknown = -1;

  virtual ~Numa() = default;
  // Number of nodes, at least 1. Nodes count from 0, independently of the system's numbers.
  virtual int nodes() const = 0;
  // Node of the processor that runs the calling thread now; 0 where the system does not tell.
  virtual int current_node() const = 0;
  // Node of the page at each address. kUnknown for null and for untouched pages. kUnknown for every
  // address where the system does not tell (a container may deny the call).
  virtual std::vector<int> nodes_of(std::span<const void* const> addresses) const = 0;
};

// The machine as hwloc describes it; one node in a build without hwloc. Memory without processors
// of its own (HBM beside DRAM, CXL) belongs to the node whose own memory is equally near.
std::unique_ptr<Numa> read_numa();
// The result of read_numa(), read once for the process.
const Numa& machine_numa();

}  // namespace sluice
