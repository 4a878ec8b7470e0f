// One rank of a run in which rank 1 misbehaves after some units. mpi_fault_test starts it with
// mpirun, and reads what the ranks write.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/zero/ranks.hpp"

namespace {

using sluice::zero::Ranks;

constexpr int kUnits = 6;
constexpr int kFault = 3;  // the unit at which rank 1 misbehaves

// True: this rank makes no gather of the unit.
bool misbehave(const std::string& how, std::vector<std::byte>& full) {
  if (how == "stop" || how == "exit")
    std::this_thread::sleep_for(std::chrono::seconds(1));  // as in training, it has sent beats
  if (how == "stop") ::raise(SIGSTOP);
  if (how == "exit") ::_exit(7);
  if (how == "size") full.resize(full.size() * 2);
  if (how == "fail") throw sluice::Error("the disk of rank 1 is full");
  return how == "skip";
}

void gather_units(Ranks& ranks, const std::string& how) {
  for (int unit = 0; unit < kUnits; ++unit) {
    std::vector<std::byte> full(static_cast<std::size_t>(ranks.gather->world_size()) * 100'000);
    const bool is_faulty = unit == kFault && ranks.gather->rank() == 1;
    if (is_faulty && misbehave(how, full)) continue;
    ranks.gather->all_gather(full, "unit h." + std::to_string(unit));
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string how = count > 1 ? arguments[1] : "";
  const int own = sluice::launch_environment().rank;
  if (how.starts_with("never_join") && own == 1) ::raise(SIGSTOP);
  const std::atomic<int> stop = how == "never_join_and_stop" && own == 0 ? SIGTERM : 0;
  Ranks ranks = sluice::zero::join_mpi(
      {.silence_limit = sluice::zero::silence_limit_from_environment(), .stop = &stop});
  const std::string rank = std::to_string(ranks.gather->rank());
  // A rank writes its error before it leaves: once the others know of it, mpirun ends all.
  try {
    gather_units(ranks, how);
    std::cerr << "rank " + rank + " is done\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "[" + rank + "] " + error.what() + "\n";
    return 1;
  }
}
