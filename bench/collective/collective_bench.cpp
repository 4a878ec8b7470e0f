// Measures all-gather and reduce-scatter of Sluice's communicators beside MPI's own call on the
// same buffers, and beside a copy of the bytes that a rank receives. A rank that is a thread copies
// from another one's memory, where these bytes are; a process can copy only within its own. Start
// it with mpirun:
//
//   mpirun -n N collective_bench ROUNDS [MIB...]
//
// MIB: sizes of the whole buffer; without any, 1 to 256 in powers of 4. Each round measures Sluice,
// the peer, and the peer again, in the opposite order every other round; one warm-up round is not
// counted. Rank 0 prints a JSON object for each case: GB/s of each slice, received bytes of a rank
// over the time of the slowest rank, and the median of the pairs' ratios.
//
// The sums of Sluice are taken in rank order; MPI's order is its own. Elements are fp32, since MPI
// has no 16-bit ones.

#include <mpi.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "slices.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/zero/ranks.hpp"

namespace {

using namespace sluice;
using bench::Slices;

using Bytes = std::vector<std::byte>;

struct Case {
  const char* operation;
  const char* peer;
  const char* ranks;
  std::size_t size_bytes;
};

double median_of_ratios(const Slices& slices) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < slices.ours.size(); ++i)
    ratios.push_back(slices.ours[i] / slices.peer[i]);
  std::sort(ratios.begin(), ratios.end());
  return ratios[ratios.size() / 2];
}

void print(const Case& each, int ranks, const Slices& slices) {
  std::printf(
      "{\"operation\": \"%s\", \"peer\": \"%s\", \"ranks\": \"%s\", \"count\": %d, \"bytes\": %zu, "
      "\"ratio\": %.3f, \"slices\": ",
      each.operation, each.peer, each.ranks, ranks, each.size_bytes, median_of_ratios(slices));
  bench::print_slices(slices);
  std::printf("}\n");
  std::fflush(stdout);
}

// The longest seconds of any rank, after all have begun together.
double slowest(const std::function<void()>& work) {
  MPI_Barrier(MPI_COMM_WORLD);
  double seconds = bench::seconds_of(work);
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

void measure(const Case& each, int rounds, std::size_t received_bytes,
             const std::function<void()>& ours, const std::function<void()>& peer,
             const std::function<double(const std::function<void()>&)>& seconds) {
  Slices slices;
  const auto rate = [&](const std::function<void()>& work) {
    return static_cast<double>(received_bytes) / seconds(work) / 1e9;
  };
  for (int round = -1; round < rounds; ++round) {
    Slices one;
    bench::take_round(
        round + 2, round < 0 ? one : slices, [&] { return rate(ours); },
        [&] { return rate(peer); });
  }
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == 0) print(each, ranks, slices);
}

// Processes: each rank of mpirun.
void measure_processes(zero::Communicator& comm, std::size_t size_bytes, int rounds) {
  const auto ranks = static_cast<std::size_t>(comm.world_size());
  const std::size_t shard = size_bytes / ranks;
  const std::size_t received = shard * (ranks - 1);
  Bytes full(size_bytes, std::byte{1});
  Bytes other(size_bytes, std::byte{1});
  const auto count = static_cast<int>(shard);
  const auto elements = static_cast<int>(shard / sizeof(float));
  const auto copy = [&] { std::memcpy(other.data(), full.data(), received); };
  const auto gather = [&] { comm.all_gather(full, "a bench"); };
  const auto reduce = [&] { comm.reduce_scatter(full, DType::fp32, "a bench"); };
  const auto mpi_gather = [&] {
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, full.data(), count, MPI_BYTE, MPI_COMM_WORLD);
  };
  const auto mpi_reduce = [&] {
    MPI_Reduce_scatter_block(full.data(), other.data(), elements, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
  };
  measure({"all_gather", "MPI_Allgather", "processes", size_bytes}, rounds, received, gather,
          mpi_gather, slowest);
  measure({"all_gather", "a copy", "processes", size_bytes}, rounds, received, gather, copy,
          slowest);
  measure({"reduce_scatter", "MPI_Reduce_scatter_block", "processes", size_bytes}, rounds, received,
          reduce, mpi_reduce, slowest);
  measure({"reduce_scatter", "a copy", "processes", size_bytes}, rounds, received, reduce, copy,
          slowest);
}

// Threads of rank 0, while the other processes wait.
void measure_threads(int world_size, std::size_t size_bytes, int rounds) {
  auto comms = zero::make_thread_communicators(world_size);
  const auto ranks = static_cast<std::size_t>(world_size);
  const std::size_t received = size_bytes / ranks * (ranks - 1);
  std::vector<Bytes> full(ranks, Bytes(size_bytes, std::byte{1}));
  std::vector<Bytes> other(ranks, Bytes(received, std::byte{1}));
  const auto on_all = [&](const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { work(rank); });
    for (std::thread& thread : threads) thread.join();
  };
  const auto copy = [&] {
    on_all([&](std::size_t rank) {
      std::memcpy(other[rank].data(), full[(rank + 1) % ranks].data(), received);
    });
  };
  const auto seconds = [](const std::function<void()>& work) { return bench::seconds_of(work); };
  measure(
      {"all_gather", "a copy", "threads", size_bytes}, rounds, received,
      [&] { on_all([&](std::size_t rank) { comms[rank]->all_gather(full[rank], "a bench"); }); },
      copy, seconds);
  measure(
      {"reduce_scatter", "a copy", "threads", size_bytes}, rounds, received,
      [&] {
        on_all([&](std::size_t rank) {
          comms[rank]->reduce_scatter(full[rank], DType::fp32, "a bench");
        });
      },
      copy, seconds);
}

// Waits for all ranks, with the core left to others: the threads of rank 0 need all cores.
void wait_idly() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; done == 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// A whole number from 1 to `most`.
std::size_t number(const std::string& text, std::size_t most) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > most)
    throw InvalidArgument(
        text + ": a number from 1 to " + std::to_string(most) +
        " is expected; usage: mpirun -n RANKS collective_bench [ROUNDS [MIB...]]");
  return value;
}

void run(int rounds, const std::vector<std::size_t>& sizes) {
  zero::Ranks ranks = zero::join_mpi({});
  const int world_size = ranks.compute->world_size();
  for (const std::size_t mib : sizes) {
    // Whole shards of whole elements.
    const std::size_t unit = static_cast<std::size_t>(world_size) * sizeof(float);
    const std::size_t size_bytes = mib * kMiB / unit * unit;
    measure_processes(*ranks.compute, size_bytes, rounds);
    if (ranks.compute->rank() == 0) measure_threads(world_size, size_bytes, rounds);
    wait_idly();
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    // Several communicators call at once; join_mpi takes MPI as it finds it.
    int level = MPI_THREAD_SINGLE;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &level);
    const std::size_t rounds = count > 1 ? number(arguments[1], 1'000'000) : 15;
    std::vector<std::size_t> sizes;
    for (int i = 2; i < count; ++i) sizes.push_back(number(arguments[i], 4096));
    if (sizes.empty()) sizes = {1, 4, 16, 64, 256};
    run(static_cast<int>(rounds), sizes);
    MPI_Finalize();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collective_bench: %s\n", error.what());
    return 1;
  }
}
