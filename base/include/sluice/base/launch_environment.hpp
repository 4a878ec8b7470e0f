#pragma once
// The place of this process among the ranks of a run, as its launcher wrote it into the
// environment: torchrun (also DeepSpeed's launcher and `sluice launch`), Open MPI's mpirun, MPICH's
// mpiexec (Hydra), Slurm's srun.
//
// Not here: the ranks' connection. Nothing is opened, resolved or waited for.
// Thread-safe: values and free functions without state; setenv() on another thread is a race.

#include <functional>
#include <optional>
#include <string>

namespace sluice {

// Port of rank 0 where no variable gives one; torchrun and DeepSpeed have the same default.
inline constexpr int kDefaultMasterPort = 29500;

struct LaunchEnvironment {
  std::string launcher;  // "torchrun", "Open MPI", "MPICH", "Slurm"; empty: started by hand
  int rank = 0;          // 0 to world_size - 1
  int world_size = 1;    // ranks of the run, on all hosts
  int local_rank = 0;    // 0 to local_size - 1, among the ranks of this host
  int local_size = 1;
  // Host of rank 0: MASTER_ADDR, else under Slurm the first host of the step, else 127.0.0.1 where
  // all ranks are on one host. Empty: unknown (MPI needs none).
  std::string master_address = "127.0.0.1";
  int master_port = kDefaultMasterPort;  // MASTER_PORT, 1 to 65535
};

// Value of a variable of the environment; nullopt: not set. A variable that is set to nothing
// counts as not set.
using GetVariable = std::function<std::optional<std::string>(const char* name)>;

// Reads the variables. Without a launcher's variables: one rank.
//
// A process may have the variables of several launchers. torchrun and MPI must agree in rank and
// world size; the variables of torchrun alone count in a process that torchrun's agent started
// (TORCHELASTIC_RUN_ID), since mpirun or srun may have started the agents. Those of Slurm count
// when no other launcher's are set, since mpirun and torchrun inherit them from the job; and where
// srun has set MPICH's, which say less.
//
// Throws InvalidArgument, with one line that names the variables: a value that is no number, a rank
// that is not below its size, a missing part, launchers that disagree, a batch script's own process
// in a job of several tasks (it is no rank).
LaunchEnvironment launch_environment(const GetVariable& variable);
// Reads the environment of this process.
LaunchEnvironment launch_environment();

}  // namespace sluice
