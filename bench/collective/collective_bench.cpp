// Measures all-gather and reduce-scatter of Sluice's communicators beside MPI's own call on the
// same buffers, and beside a copy of the bytes that a rank receives. A rank that is a thread copies
// from another one's memory, where these bytes are; a process can copy only within its own.
//
// Threads also copy, or add what they receive to what they have, between two meetings: all wait for
// each other by an atomic number before and after. No call between ranks does less: its bytes are
// there when the others have come, and are their owners' again when all have read. Start it with
// mpirun:
//
//   mpirun -n N --bind-to none collective_bench ROUNDS [MIB...]
//
// MIB: sizes of the whole buffer; without any, 1 to 256 in powers of 4. Each round measures Sluice,
// the peer, and the peer again, in the opposite order every other round, each by as many calls as
// move 64 MiB; one warm-up round is not counted. Rank 0 prints a JSON object for each case: GB/s of
// each slice, received bytes of a rank over the time of the slowest rank, and the median of the
// pairs' ratios.
//
// The sums of Sluice are taken in rank order; MPI's order is its own. Elements are fp32, since MPI
// has no 16-bit ones.

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "slices.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
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

// Small calls are measured several at a time.
constexpr std::size_t kSliceBytes = 64 * kMiB;

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

double seconds_of_calls(const std::function<void()>& work, std::size_t calls) {
  return bench::seconds_of([&] {
    for (std::size_t call = 0; call < calls; ++call) work();
  });
}

// The longest seconds of any rank, after all have begun together, and after one call that is not
// counted: the other sides have left other bytes in the caches.
double slowest(const std::function<void()>& work, std::size_t calls) {
  work();
  MPI_Barrier(MPI_COMM_WORLD);
  double seconds = seconds_of_calls(work, calls);
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

// `seconds` of a side: of its slowest rank.
template <typename Ours, typename Peer, typename Seconds>
void measure(const Case& each, int rounds, std::size_t received_bytes, const Ours& ours,
             const Peer& peer, const Seconds& seconds) {
  Slices slices;
  const std::size_t calls = std::max<std::size_t>(1, kSliceBytes / each.size_bytes);
  const auto rate = [&](const auto& work) {
    return static_cast<double>(calls * received_bytes) / seconds(work, calls) / 1e9;
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

// The cores that this process may use.
std::vector<int> own_cores() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
    throw Error("sched_getaffinity has failed");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  return cores;
}

void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (::sched_setaffinity(0, sizeof(one), &one) != 0) throw Error("sched_setaffinity has failed");
}

// As slowest(), of ranks that are threads of this process, each on a core of its own. They wait for
// each other awake: to start or to wake a thread takes longer than a small call.
double slowest_thread(const std::vector<int>& cores, const std::function<void(std::size_t)>& work,
                      std::size_t calls) {
  std::atomic<std::size_t> here{0};
  std::vector<double> seconds(cores.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < cores.size(); ++rank) {
    threads.emplace_back([&, rank] {
      stay_on(cores[rank]);
      work(rank);
      ++here;
      while (here < cores.size()) std::this_thread::yield();
      seconds[rank] = seconds_of_calls([&] { work(rank); }, calls);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// A reduce-scatter of two ranks does at least this.
__attribute__((target_clones("avx512f", "avx2", "default"))) void add(float* to, const float* from,
                                                                      std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

// Where threads wait for each other awake.
class Meeting {
 public:
  explicit Meeting(std::size_t ranks) : come_(ranks) {}
  // Returns when every rank has called it as often as this one.
  void meet(std::size_t rank) {
    const std::size_t times = come_[rank].times.load(std::memory_order_relaxed) + 1;
    come_[rank].times.store(times, std::memory_order_release);
    for (const Place& other : come_)
      while (other.times.load(std::memory_order_acquire) < times) continue;
  }

 private:
  struct alignas(64) Place {  // a cache line for each rank
    std::atomic<std::size_t> times{0};
  };
  std::vector<Place> come_;
};

// Threads of rank 0, while the other processes wait.
void measure_threads(int world_size, std::size_t size_bytes, int rounds) {
  auto comms = zero::make_thread_communicators(world_size);
  const auto ranks = static_cast<std::size_t>(world_size);
  std::vector<int> cores = own_cores();
  if (cores.size() < ranks)
    throw Error("rank 0 may use " + std::to_string(cores.size()) + " cores for " +
                std::to_string(ranks) + " threads; start it with mpirun --bind-to none");
  cores.resize(ranks);
  const std::size_t shard = size_bytes / ranks;
  std::vector<Bytes> full(ranks, Bytes(size_bytes, std::byte{1}));
  std::vector<Bytes> received(ranks, Bytes(shard * (ranks - 1), std::byte{1}));
  // `work` gets each other rank, and its number among them.
  const auto with_others = [&](std::size_t rank, const auto& work) {
    for (std::size_t i = 1; i < ranks; ++i) work((rank + i) % ranks, i - 1);
  };
  const auto gather = [&](std::size_t rank) { comms[rank]->all_gather(full[rank], "a bench"); };
  const auto reduce = [&](std::size_t rank) {
    comms[rank]->reduce_scatter(full[rank], DType::fp32, "a bench");
  };
  const auto copy_shards = [&](std::size_t rank) {
    with_others(rank, [&](std::size_t other, std::size_t) {
      std::memcpy(full[rank].data() + other * shard, full[other].data() + other * shard, shard);
    });
  };
  const auto copy_parts = [&](std::size_t rank) {
    with_others(rank, [&](std::size_t other, std::size_t slot) {
      std::memcpy(received[rank].data() + slot * shard, full[other].data() + rank * shard, shard);
    });
  };
  const auto sum_parts = [&](std::size_t rank) {
    with_others(rank, [&](std::size_t other, std::size_t) {
      add(reinterpret_cast<float*>(full[rank].data() + rank * shard),
          reinterpret_cast<const float*>(full[other].data() + rank * shard), shard / sizeof(float));
    });
  };
  Meeting meeting(ranks);
  const auto between_meetings = [&](const auto& work) {
    return [&](std::size_t rank) {
      meeting.meet(rank);
      work(rank);
      meeting.meet(rank);
    };
  };
  const auto seconds = [&](const std::function<void(std::size_t)>& work, std::size_t calls) {
    return slowest_thread(cores, work, calls);
  };
  const std::size_t received_bytes = received.front().size();
  measure({"all_gather", "a copy", "threads", size_bytes}, rounds, received_bytes, gather,
          copy_shards, seconds);
  measure({"all_gather", "a copy between meetings", "threads", size_bytes}, rounds, received_bytes,
          gather, between_meetings(copy_shards), seconds);
  measure({"reduce_scatter", "a copy", "threads", size_bytes}, rounds, received_bytes, reduce,
          copy_parts, seconds);
  measure({"reduce_scatter", "a sum between meetings", "threads", size_bytes}, rounds,
          received_bytes, reduce, between_meetings(sum_parts), seconds);
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
  const std::optional<std::size_t> value = parse_number<std::size_t>(text);
  if (!value || *value < 1 || *value > most)
    throw InvalidArgument(
        text + ": a number from 1 to " + std::to_string(most) +
        " is expected; usage: mpirun -n RANKS --bind-to none collective_bench [ROUNDS [MIB...]]");
  return *value;
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
