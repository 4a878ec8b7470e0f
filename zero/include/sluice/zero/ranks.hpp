#pragma once
// Ranks: the processes that train one model together, and the communicators between them. A rank
// has one communicator for each direction of use, because the thread that gathers, the thread that
// computes, and control (plans, commits, signals) call at the same time.
//
// MPI is a library of its own, libsluice_mpi.so, which join_mpi() loads by name. A program that
// links sluice::zero through the installed CMake package finds it. One that is linked otherwise
// needs the library's folder in its rpath or in LD_LIBRARY_PATH. A program that never calls
// join_mpi() runs without MPI.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "sluice/base/executor.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::zero {

// Between processes, a communicator that sums holds 2 MiB of host memory for each other rank. Each
// belongs to one thread at a time. The last one that is destroyed leaves the world: with MPI it
// blocks until the other ranks have ended too, or have been silent for `silence_limit`.
struct Ranks {
  std::unique_ptr<Communicator> compute;  // gradients, norms, losses: computing and reduce threads
  std::unique_ptr<Communicator> gather;   // weights: the gather worker's thread
  std::unique_ptr<Communicator> control;  // plans, agreement, commits
};

// SLUICE_RANK_TIMEOUT, in seconds; 45 when it is not set. 0: never. Throws InvalidArgument when it
// is no number.
std::chrono::duration<double> silence_limit_from_environment();

struct MpiOptions {
  // A rank that has not answered for this long ends the calls that wait for it, with its name and
  // what it was doing. A rank that computes for longer answers meanwhile, from a thread of its own.
  // 0: wait for ever. While the ranks join, it is the limit for all of them to come.
  std::chrono::duration<double> silence_limit{45};
  // Shares the loops of large sums; outlives the ranks. Null: the thread of the call sums.
  Executor* executor = nullptr;
  // Becomes the number of a signal that asks the process to stop; read while the ranks join. Null:
  // none.
  const std::atomic<int>* stop = nullptr;
};

// Whether a launcher of MPI (mpirun, mpiexec, srun) started this process.
bool started_by_mpi();
// Joins the ranks that mpirun or srun started; blocks until all have joined. MPI cannot be
// interrupted there: when `silence_limit` has passed, or on a `stop`, the process ends at once,
// with exit code 1 and a line on standard error, or with 128 + the signal's number. Call it once in
// a process, before other threads start: with ranks on several hosts it sets variables of Open MPI
// that the environment does not have (OMPI_MCA_btl_tcp_eager_limit and its kin), so that both
// directions of a TCP link work at once. Throws Error with the reason and the remedy where this
// build or this machine has no MPI, or where the MPI library gives no MPI_THREAD_MULTIPLE.
Ranks join_mpi(const MpiOptions& options);
// The communicators of a world of one rank.
Ranks make_single_ranks();

}  // namespace sluice::zero
