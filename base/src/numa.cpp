#include "numa.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sluice/base/threads.hpp"

#if SLUICE_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace sluice {

namespace {

#if SLUICE_HAVE_HWLOC

// A description with larger numbers of processors or nodes is wrong.
constexpr unsigned kMostIndex = 1U << 16U;

// Our node number for each of the system's numbers, which index the vector; kUnknown in gaps.
using NodeNumbers = std::vector<int>;

void set(NodeNumbers& numbers, unsigned of_system, int node) {
  if (of_system >= numbers.size()) numbers.resize(of_system + 1, Numa::kUnknown);
  numbers[of_system] = node;
}

int number(const NodeNumbers& numbers, int of_system) {
  if (of_system < 0 || static_cast<std::size_t>(of_system) >= numbers.size()) return Numa::kUnknown;
  return numbers[static_cast<std::size_t>(of_system)];
}

// Nodes with processors, smallest first: processors of nested nodes belong to the inner node.
std::vector<hwloc_obj_t> nodes_by_size(hwloc_topology_t topology) {
  std::vector<hwloc_obj_t> nodes;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (node->os_index <= kMostIndex && hwloc_bitmap_last(node->cpuset) <= int{kMostIndex} &&
        !hwloc_bitmap_iszero(node->cpuset))
      nodes.push_back(node);
  }
  std::stable_sort(nodes.begin(), nodes.end(), [](hwloc_obj_t a, hwloc_obj_t b) {
    return hwloc_bitmap_weight(a->cpuset) < hwloc_bitmap_weight(b->cpuset);
  });
  return nodes;
}

class MachineNuma final : public Numa {
 public:
  MachineNuma() {
    if (!allowed_cores()) return;
    hwloc_topology_t loading = nullptr;
    if (hwloc_topology_init(&loading) != 0) return;
    struct Destroy {
      void operator()(hwloc_topology_t of) const { hwloc_topology_destroy(of); }
    };
    const std::unique_ptr<hwloc_topology, Destroy> topology(loading);
    if (hwloc_topology_load(topology.get()) != 0) return;
    // Memories with equal processors (a package's DRAM and HBM) are one node. Memory near the
    // processors of several nodes belongs to no node.
    std::vector<hwloc_const_cpuset_t> owners;  // indexed by our node number
    for (const hwloc_obj_t node : nodes_by_size(topology.get())) {
      const auto same = std::find_if(owners.begin(), owners.end(), [&](hwloc_const_cpuset_t of) {
        return hwloc_bitmap_isequal(of, node->cpuset) != 0;
      });
      const auto here = static_cast<int>(same - owners.begin());
      if (same == owners.end()) {
        const bool shared = std::any_of(owners.begin(), owners.end(), [&](hwloc_const_cpuset_t of) {
          return hwloc_bitmap_intersects(of, node->cpuset) != 0;
        });
        if (shared) continue;
        owners.push_back(node->cpuset);
        for (int cpu = -1; (cpu = hwloc_bitmap_next(node->cpuset, cpu)) != -1;)
          set(node_of_cpu_, static_cast<unsigned>(cpu), here);
      }
      set(node_of_memory_, node->os_index, here);
    }
    nodes_ = std::max(1, static_cast<int>(owners.size()));
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
    // Without target nodes, move_pages leaves the pages in place and reports their nodes.
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

std::unique_ptr<Numa> read_numa() {
  return std::make_unique<MachineNuma>();
}

const Numa& machine_numa() {
  static const std::unique_ptr<Numa> machine = read_numa();
  return *machine;
}

}  // namespace sluice
