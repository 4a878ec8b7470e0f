// Uses the installed communicators, which need no LibTorch.

#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "sluice/zero/ranks.hpp"

int main() try {
  const int world_size = 2;
  auto ranks = sluice::zero::make_thread_communicators(world_size);
  std::vector<double> sums = {1, 2};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] { ranks[rank]->all_reduce({&sums[rank], 1}); });
  for (std::thread& thread : threads) thread.join();
  std::string by_mpi;
  try {
    by_mpi = std::to_string(sluice::zero::join_mpi({}).compute->world_size());
  } catch (const std::exception& error) {
    by_mpi = error.what();
  }
  std::printf("threads: %.0f, MPI: %s\n", sums[1], by_mpi.c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "ranks: %s\n", error.what());
  return 1;
}
