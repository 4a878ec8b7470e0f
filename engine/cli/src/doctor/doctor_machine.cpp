// doctor: processor, memory, limits.

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>

#include "doctor/doctor.hpp"
#include "files/system_files.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/plan/memory_limits.hpp"
#include "terminal/text_format.hpp"

#if defined(SLUICE_HAVE_HWLOC)
#include <hwloc.h>
#endif

namespace sluice::cli {

namespace {

constexpr const char* kCpuinfo = "/proc/cpuinfo";
constexpr const char* kMeminfo = "/proc/meminfo";

DoctorRow fact(std::string name, std::string detail,
               std::vector<std::pair<std::string, std::uint64_t>> numbers = {}) {
  return {std::move(name), DoctorState::fact, std::move(detail), std::move(numbers)};
}

// The CPU flags of the kernel's list that matter to training, oldest first.
std::string simd_features() {
  std::string flags = proc_field(kCpuinfo, "flags");
  if (flags.empty()) flags = proc_field(kCpuinfo, "Features");
  flags = " " + flags + " ";
  std::string found;
  for (const char* name :
       {"sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile", "asimd", "bf16", "sve", "sve2"}) {
    if (flags.find(" " + std::string(name) + " ") != std::string::npos) {
      found += (found.empty() ? "" : " ") + std::string(name);
    }
  }
  return found.empty() ? "none that matters here" : found;
}

DoctorRow adam_row() {
  try {
    return {"cpu_adam",
            DoctorState::on,
            std::string(cpu_adam::kernel_in_use()) +
                " (this build has: " + join(cpu_adam::kernel_names(), ", ") + ")",
            {}};
  } catch (const InvalidArgument& error) {  // SLUICE_SIMD names a kernel that does not exist
    return {"cpu_adam", DoctorState::off, error.what(), {}};
  }
}

DoctorRow cores_row() {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const int usable = allowed_cores().value_or(static_cast<int>(online));
  std::string detail = std::to_string(usable) + " for this process, of " + std::to_string(online);
  const std::string quota =
      read_small_file("/sys/fs/cgroup/cpu.max");  // "200000 100000" or "max 100000"
  std::istringstream parts(quota);
  double used = 0;
  double period = 0;
  if (parts >> used >> period && period > 0) {
    detail += "; the container's quota is " + format_number("%.1f", used / period);
  }
  return fact("cores", detail,
              {{"usable", static_cast<std::uint64_t>(usable)},
               {"online", static_cast<std::uint64_t>(online)}});
}

DoctorRow memory_row() {
  const std::optional<std::uint64_t> total = proc_bytes(kMeminfo, {"MemTotal"});
  if (!total)
    return {"memory", DoctorState::off, "/proc is not mounted: train and generate need it", {}};
  const std::uint64_t available = proc_bytes(kMeminfo, {"MemAvailable"}).value_or(0);
  std::string detail = format_bytes(available) + " available, of " + format_bytes(*total);
  std::vector<std::pair<std::string, std::uint64_t>> numbers = {{"total_bytes", *total},
                                                                {"available_bytes", available}};
  if (const auto group = plan::group_memory()) {
    detail += "; control group limit " + format_bytes(group->limit_bytes) + ", of which " +
              format_bytes(group->available_bytes) + " are left (" + group->limit_file + ")";
    numbers.emplace_back("cgroup_limit_bytes", group->limit_bytes);
    numbers.emplace_back("cgroup_available_bytes", group->available_bytes);
  } else {
    detail += "; no control group limit";
  }
  return fact("memory", detail, numbers);
}

DoctorRow huge_pages_row() {
  const std::string modes = read_small_file("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t open = modes.find('[');
  const std::size_t close = modes.find(']');
  const std::string mode = open < close && close != std::string::npos
                               ? modes.substr(open + 1, close - open - 1)
                               : "not offered by this kernel";
  const std::string reserved = proc_field(kMeminfo, "HugePages_Total");
  return fact("huge pages", "transparent: " + mode +
                                "; reserved: " + (reserved.empty() ? "0" : reserved) + " of " +
                                format_bytes(proc_bytes(kMeminfo, {"Hugepagesize"}).value_or(0)));
}

#if defined(SLUICE_HAVE_HWLOC)
DoctorRow numa_row() {
  if (!allowed_cores())
    return {
        "NUMA", DoctorState::off, "the system refuses sched_getaffinity, which hwloc needs", {}};
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0)
    return {"NUMA", DoctorState::off, "hwloc did not start", {}};
  std::string detail;
  std::uint64_t nodes = 0;
  if (hwloc_topology_load(topology) == 0) {
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      detail += "; node " + std::to_string(node->os_index) + ": " +
                std::to_string(hwloc_bitmap_weight(node->cpuset)) + " cores, " +
                format_bytes(node->attr->numanode.local_memory);
      ++nodes;
    }
    const hwloc_obj_t cache = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_L3CACHE, nullptr);
    if (cache != nullptr) detail += "; L3 cache " + format_bytes(cache->attr->cache.size);
  }
  hwloc_topology_destroy(topology);
  return fact("NUMA", counted(nodes, "node") + detail, {{"nodes", nodes}});
}
#else
DoctorRow numa_row() {
  return {"NUMA", DoctorState::off, "built without hwloc (package libhwloc-dev)", {}};
}
#endif

DoctorRow memlock_row() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return fact("memlock", "unknown");
  if (limit.rlim_cur == RLIM_INFINITY) return fact("memlock", "no limit on locked memory");
  if (plan::lockable_bytes() != limit.rlim_cur)
    return fact("memlock", "no limit on locked memory: CAP_IPC_LOCK lifts that of " +
                               format_bytes(limit.rlim_cur) + " (ulimit -l)");
  return fact("memlock",
              "at most " + format_bytes(limit.rlim_cur) +
                  " can be locked (ulimit -l; limits.conf: memlock; --ulimit memlock=-1 of a "
                  "container)",
              {{"limit_bytes", limit.rlim_cur}});
}

DoctorRow shm_row() {
  struct statvfs facts = {};
  if (::statvfs("/dev/shm", &facts) != 0) return {"/dev/shm", DoctorState::off, "not mounted", {}};
  const std::uint64_t total = std::uint64_t{facts.f_frsize} * facts.f_blocks;
  const std::uint64_t free = std::uint64_t{facts.f_frsize} * facts.f_bavail;
  return fact("/dev/shm", format_bytes(free) + " free, of " + format_bytes(total),
              {{"total_bytes", total}, {"free_bytes", free}});
}

}  // namespace

std::vector<DoctorRow> probe_cpu_and_memory() {
  std::string model = proc_field(kCpuinfo, "model name");
  if (model.empty()) model = "not named by the kernel";
  return {fact("processor", model),
          fact("SIMD", simd_features()),
          adam_row(),
          cores_row(),
          memory_row(),
          huge_pages_row(),
          numa_row(),
          memlock_row(),
          shm_row()};
}

}  // namespace sluice::cli
