#include "launch/rank_cores.hpp"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

#include "launch/host_list.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

#if defined(SLUICE_HAVE_HWLOC)
#include <hwloc.h>
#endif

namespace sluice::cli {

namespace {

// A logical processor and the physical core that it belongs to.
struct Cpu {
  int number = 0;
  int core = 0;
};

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  SLUICE_SYSCALL(::sched_getaffinity(0, sizeof set, &set), "the cores of this process");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

#if defined(SLUICE_HAVE_HWLOC)
// All processors in the order of the topology: neighbours share a core, then a cache, then memory.
std::vector<Cpu> topology_order() {
  std::vector<Cpu> order;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return order;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_obj_t unit = nullptr;
    while ((unit = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, unit)) != nullptr) {
      hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, unit);
      const unsigned core_index = core == nullptr ? unit->logical_index : core->logical_index;
      order.push_back({static_cast<int>(unit->os_index), static_cast<int>(core_index)});
    }
  }
  hwloc_topology_destroy(topology);
  return order;
}
#else
std::vector<Cpu> topology_order() {
  return {};
}
#endif

// `cpus` in the order of the topology; in their own order where it is unknown.
std::vector<Cpu> in_topology_order(const std::vector<int>& cpus) {
  std::vector<Cpu> ordered;
  for (const Cpu& cpu : topology_order()) {
    if (std::find(cpus.begin(), cpus.end(), cpu.number) != cpus.end()) ordered.push_back(cpu);
  }
  if (ordered.size() == cpus.size()) return ordered;
  ordered.clear();
  for (const int cpu : cpus) ordered.push_back({cpu, cpu});
  return ordered;
}

int to_cpu(const std::string& list, const std::string& text) {
  const std::optional<int> value = parse_number<int>(text);
  SLUICE_CHECK(value && *value >= 0 && *value < CPU_SETSIZE,
               "--bind-core-list: expected cores as in 0-7,16-23, found \"" + list + "\"");
  return *value;
}

}  // namespace

std::vector<int> parse_core_list(const std::string& text) {
  std::set<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dash = part.find('-');
    const int first = to_cpu(text, part.substr(0, dash));
    const int last = dash == std::string::npos ? first : to_cpu(text, part.substr(dash + 1));
    SLUICE_CHECK(first <= last, "--bind-core-list: \"" + part + "\" ends before it begins");
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return {cpus.begin(), cpus.end()};
}

std::vector<RankCores> share_cores(const std::string& list, int ranks) {
  const std::vector<int> allowed = allowed_cpus();
  const std::vector<int> cpus = list.empty() ? allowed : parse_core_list(list);
  for (const int cpu : cpus) {
    SLUICE_CHECK(std::binary_search(allowed.begin(), allowed.end(), cpu),
                 "--bind-core-list: this process may not use core " + std::to_string(cpu) +
                     "; its cores are " + join(allowed, ","));
  }
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t each = cpus.size() / count;
  SLUICE_CHECK(each > 0, "--bind-cores-to-rank: " + std::to_string(ranks) +
                             " ranks need a core "
                             "each, and there are " +
                             std::to_string(cpus.size()));
  const std::vector<Cpu> ordered = in_topology_order(cpus);
  std::vector<RankCores> shares(count);
  for (std::size_t i = 0; i < each * count; ++i) shares[i / each].cpus.push_back(ordered[i].number);
  for (std::size_t r = 0; r < count; ++r) {
    std::set<int> cores;
    for (std::size_t i = r * each; i < (r + 1) * each; ++i) cores.insert(ordered[i].core);
    shares[r].cores = static_cast<int>(cores.size());
  }
  return shares;
}

}  // namespace sluice::cli
