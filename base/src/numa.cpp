#include "numa.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#if SLUICE_HAVE_HWLOC
#include <hwloc.h>

#include <memory>
#endif

namespace sluice {

namespace {

#if SLUICE_HAVE_HWLOC

// Numbers of the system (places of the vector) to ours; kUnknown between them.
using NodeNumbers = std::vector<int>;

void set(NodeNumbers& numbers, unsigned of_system, int node) {
  if (of_system >= numbers.size()) numbers.resize(of_system + 1, Numa::kUnknown);
  numbers[of_system] = node;
}

int number(const NodeNumbers& numbers, int of_system) {
  if (of_system < 0 || static_cast<std::size_t>(of_system) >= numbers.size()) return Numa::kUnknown;
  return numbers[static_cast<std::size_t>(of_system)];
}

class MachineNuma final : public Numa {
 public:
  MachineNuma() {
    hwloc_topology_t loading = nullptr;
    if (hwloc_topology_init(&loading) != 0) return;
    struct Destroy {
      void operator()(hwloc_topology_t of) const { hwloc_topology_destroy(of); }
    };
    const std::unique_ptr<hwloc_topology, Destroy> topology(loading);
    if (hwloc_topology_load(topology.get()) != 0) return;
    int found = 0;
    for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(
                                          topology.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      // Memory without processors is on no thread's node.
      if (hwloc_bitmap_iszero(node->cpuset)) continue;
      set(node_of_memory_, node->os_index, found);
      for (int cpu = -1; (cpu = hwloc_bitmap_next(node->cpuset, cpu)) != -1;)
        set(node_of_cpu_, static_cast<unsigned>(cpu), found);
      ++found;
    }
    if (found > 1) nodes_ = found;
  }

  int nodes() const override { return nodes_; }

  int current_node() const override {
    const int node = number(node_of_cpu_, sched_getcpu());
    return node == kUnknown ? 0 : node;
  }

  std::vector<int> nodes_of(std::span<const void* const> addresses) const override {
    std::vector<int> out(addresses.size(), kUnknown);
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    std::vector<std::uintptr_t> pages;
    pages.reserve(addresses.size());
    for (const void* address : addresses)
      pages.push_back(reinterpret_cast<std::uintptr_t>(address) / page * page);
    // Without nodes to move them to, pages stay and their nodes are written.
    constexpr std::nullptr_t kMoveNowhere = nullptr;
    if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), kMoveNowhere, out.data(), 0) != 0)
      return std::vector<int>(addresses.size(), kUnknown);
    for (int& node : out) node = number(node_of_memory_, node);
    return out;
  }

 private:
  int nodes_ = 1;
  NodeNumbers node_of_cpu_, node_of_memory_;
};

#else

class MachineNuma final : public Numa {
 public:
  int nodes() const override { return 1; }
  int current_node() const override { return 0; }
  std::vector<int> nodes_of(std::span<const void* const> addresses) const override {
    return std::vector<int>(addresses.size(), kUnknown);
  }
};

#endif

}  // namespace

const Numa& machine_numa() {
  static const MachineNuma machine;
  return machine;
}

}  // namespace sluice
