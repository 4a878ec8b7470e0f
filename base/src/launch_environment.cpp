#include "sluice/base/launch_environment.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice {

namespace {

// A variable that is set, and its text.
struct Found {
  std::string name;
  std::string text;
  std::string shown() const { return name + "=" + text; }
};

// The names that one value has, the preferred one first.
using Names = std::vector<const char*>;

struct Launcher {
  const char* name;
  Names rank;
  Names world_size;
  Names local_rank;
  Names local_size;
  Names tasks_per_host;  // Slurm's list, where local_size is not set
};

// LOCAL_SIZE is what DeepSpeed's launcher sets. Hydra is the process manager of MPICH and Intel
// MPI.
const Launcher& torchrun() {
  static const Launcher launcher{
      "torchrun", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"}, {}};
  return launcher;
}
const Launcher& open_mpi() {
  static const Launcher launcher{"Open MPI",
                                 {"OMPI_COMM_WORLD_RANK"},
                                 {"OMPI_COMM_WORLD_SIZE"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE"},
                                 {}};
  return launcher;
}
// srun with PMI sets PMI_RANK and PMI_SIZE, and says the rest in variables of its own.
const Launcher& mpich() {
  static const Launcher launcher{"MPICH",
                                 {"PMI_RANK"},
                                 {"PMI_SIZE"},
                                 {"MPI_LOCALRANKID", "SLURM_LOCALID"},
                                 {"MPI_LOCALNRANKS"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}};
  return launcher;
}
const Launcher& slurm() {
  static const Launcher launcher{"Slurm",
                                 {"SLURM_PROCID"},
                                 {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
                                 {"SLURM_LOCALID"},
                                 {},
                                 {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}};
  return launcher;
}

class Reader {
 public:
  explicit Reader(const GetVariable& variable) : variable_(variable) {}

  // srun starts every rank with the variables of a step. A batch script has task 0's variables
  // without them, whatever the number of tasks.
  bool is_in_step() const {
    return find({"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"}).has_value();
  }

  std::optional<Found> find(const Names& names) const {
    for (const char* name : names) {
      const std::optional<std::string> text = variable_(name);
      if (text && !text->empty()) return Found{name, *text};
    }
    return std::nullopt;
  }

  // Whether the launcher set anything that says which rank this is.
  bool has(const Launcher& launcher) const {
    return find(launcher.rank) || find(launcher.world_size);
  }

  LaunchEnvironment read(const Launcher& launcher) const {
    LaunchEnvironment ranks;
    ranks.launcher = launcher.name;
    const Found rank = need(launcher, launcher.rank);
    const Found world = need(launcher, launcher.world_size);
    ranks.world_size = number(launcher, world, 1);
    ranks.rank = number(launcher, rank, 0);
    check_below(launcher, ranks.rank, rank, ranks.world_size, world);
    read_local(launcher, world, ranks);
    read_master(launcher, ranks);
    return ranks;
  }

 private:
  [[noreturn]] static void refuse(const Launcher& launcher, const std::string& problem) {
    throw InvalidArgument(problem + " (variables of " + launcher.name + ")");
  }

  Found need(const Launcher& launcher, const Names& names) const {
    const std::optional<Found> found = find(names);
    if (found) return *found;
    std::string set;
    for (const Names* const others : {&launcher.rank, &launcher.world_size}) {
      if (const std::optional<Found> other = find(*others))
        set += (set.empty() ? " beside " : " and ") + other->shown();
    }
    refuse(launcher, std::string(names.front()) + " is not set" + set +
                         ": start the ranks with a launcher, or unset its variables");
  }

  static int number(const Launcher& launcher, const Found& found, int at_least,
                    int at_most = INT_MAX) {
    const std::optional<int> value = parse_number<int>(found.text);
    if (value && *value >= at_least && *value <= at_most) return *value;
    refuse(launcher, found.name + "=\"" + found.text + "\": expected a whole number from " +
                         std::to_string(at_least) + " to " + std::to_string(at_most));
  }

  static void check_below(const Launcher& launcher, int rank, const Found& rank_found, int size,
                          const Found& size_found) {
    if (rank < size) return;
    refuse(launcher, rank_found.shown() + " with " + size_found.shown() +
                         ": ranks are numbered from 0 to " + std::to_string(size - 1));
  }

  void read_local(const Launcher& launcher, const Found& world, LaunchEnvironment& ranks) const {
    if (ranks.world_size == 1 && (!find(launcher.local_rank) || !find(launcher.local_size))) return;
    const Found rank = need(launcher, launcher.local_rank);
    const Found size = local_size(launcher);
    ranks.local_rank = number(launcher, rank, 0);
    ranks.local_size = number(launcher, size, 1);
    check_below(launcher, ranks.local_rank, rank, ranks.local_size, size);
    if (ranks.local_size > ranks.world_size) {
      refuse(launcher,
             size.shown() + " with " + world.shown() + ": a host has at most all ranks of the run");
    }
  }

  // Slurm lists the tasks of all hosts, "2(x3),1" for three hosts with 2 and one with 1.
  Found local_size(const Launcher& launcher) const {
    if (const auto found = find(launcher.local_size)) return *found;
    const auto list = find(launcher.tasks_per_host);
    if (!list)
      return need(launcher,
                  launcher.local_size.empty() ? launcher.tasks_per_host : launcher.local_size);
    const auto node = find({"SLURM_NODEID"});
    int hosts_before = node ? number(launcher, *node, 0) : 0;
    std::size_t begin = 0;
    while (begin < list->text.size()) {
      const std::size_t end = std::min(list->text.find(',', begin), list->text.size());
      const std::string entry = list->text.substr(begin, end - begin);
      const std::size_t times = entry.find("(x");
      const int hosts =
          times == std::string::npos || entry.back() != ')'
              ? 1
              : number(launcher, {list->name, entry.substr(times + 2, entry.size() - times - 3)},
                       1);
      if (hosts_before < hosts) return {list->name, entry.substr(0, times)};
      hosts_before -= hosts;
      begin = end + 1;
    }
    refuse(launcher, list->shown() + " has no host number " + node->text + " (SLURM_NODEID)");
  }

  void read_master(const Launcher& launcher, LaunchEnvironment& ranks) const {
    const bool one_host = ranks.local_size == ranks.world_size;
    if (const auto port = find({"MASTER_PORT"}))
      ranks.master_port = number(launcher, *port, 1, 65535);
    if (const auto address = find({"MASTER_ADDR"})) {
      ranks.master_address = address->text;
    } else if (const auto hosts = find({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
               hosts && (ranks.launcher == slurm().name || (!one_host && is_task_of_srun(ranks)))) {
      ranks.master_address = first_host(hosts->text);
    } else if (!one_host) {
      if (ranks.launcher == torchrun().name) need(launcher, {"MASTER_ADDR"});
      ranks.master_address.clear();
    }
  }

  // srun with PMI starts each rank as the task of that number. MPICH's own launcher in a Slurm job
  // may place rank 0 on any of the job's hosts; all its ranks have one task's variables, those of
  // the batch script or of the proxy on their host.
  bool is_task_of_srun(const LaunchEnvironment& ranks) const {
    const auto is = [&](const Names& names, int value) {
      const auto found = find(names);
      return found && parse_number<int>(found->text) == value;
    };
    return ranks.launcher == mpich().name && is_in_step() && is(slurm().rank, ranks.rank) &&
           is(slurm().world_size, ranks.world_size);
  }

  // "node[07-12,20],login" names node07 first.
  static std::string first_host(const std::string& list) {
    std::string host;
    for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
      if (list[i] != '[') {
        host += list[i];
        continue;
      }
      const std::size_t end = std::min(list.find_first_of(",-]", i), list.size());
      host += list.substr(i + 1, end - i - 1);
      i = std::min(list.find(']', i), list.size());
    }
    return host;
  }

  const GetVariable& variable_;
};

void check_step(const Reader& reader, const LaunchEnvironment& ranks) {
  SLUICE_CHECK(reader.is_in_step() || ranks.rank > 0 || ranks.world_size == 1,
               "SLURM_PROCID=0 of " + std::to_string(ranks.world_size) +
                   " tasks, outside a job step (SLURM_STEP_ID is not set): the batch script itself "
                   "is no rank; start the ranks with srun, or one with srun -n 1");
}

std::string shown(const LaunchEnvironment& ranks) {
  return ranks.launcher + " says rank " + std::to_string(ranks.rank) + " of " +
         std::to_string(ranks.world_size);
}

}  // namespace

LaunchEnvironment launch_environment(const GetVariable& variable) {
  const Reader reader(variable);
  if (reader.has(torchrun()) && reader.find({"TORCHELASTIC_RUN_ID"}))
    return reader.read(torchrun());
  std::optional<LaunchEnvironment> chosen;
  for (const Launcher* launcher : {&torchrun(), &open_mpi(), &mpich()}) {
    if (!reader.has(*launcher)) continue;
    const LaunchEnvironment ranks = reader.read(*launcher);
    if (!chosen) chosen = ranks;
    SLUICE_CHECK(chosen->rank == ranks.rank && chosen->world_size == ranks.world_size,
                 "two launchers disagree: " + shown(*chosen) + ", " + shown(ranks) +
                     "; unset the variables of the one that did not start this process");
  }
  if (chosen) return *chosen;
  if (!reader.find(slurm().rank)) return {};
  LaunchEnvironment ranks = reader.read(slurm());
  check_step(reader, ranks);
  return ranks;
}

LaunchEnvironment launch_environment() {
  return launch_environment([](const char* name) -> std::optional<std::string> {
    const char* const text = std::getenv(name);
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
  });
}

}  // namespace sluice
