// Communicators of processes that mpirun started. ctest runs this program with 1, 2 and 4 ranks.

#include <thread>

#include "mpi_world.hpp"
#include "zero/communicator_conformance.hpp"

namespace sluice::zero {
namespace {

using test::Bytes;
using test::CommunicatorCase;
using test::CommunicatorConformance;
using test::MpiWorld;

CommunicatorCase processes() {
  CommunicatorCase each{"processes", MpiWorld::world_size(),
                        [](const auto& body) { body(*MpiWorld::ranks().compute); }};
  return each;
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, testing::Values(processes()));

TEST(MpiRanks, StartedByMpiIsTrueBelowMpirun) {
  EXPECT_TRUE(started_by_mpi());
  EXPECT_EQ(MpiWorld::ranks().control->world_size(), MpiWorld::world_size());
}

// As the gather worker and the computing thread do.
TEST(MpiRanks, CommunicatorsOfSeveralThreadsDoNotMix) {
  Ranks& ranks = MpiWorld::ranks();
  constexpr std::size_t kShard = 300'000;
  const auto use = [](Communicator& comm, int seed) {
    const auto ranks_count = static_cast<std::size_t>(comm.world_size());
    for (int round = 0; round < 20; ++round) {
      Bytes full(kShard * ranks_count);
      const auto own = std::span(full).subspan(static_cast<std::size_t>(comm.rank()) * kShard);
      std::ranges::fill(own.first(kShard), static_cast<std::byte>(seed + comm.rank() + round));
      comm.all_gather(full, "round " + std::to_string(round));
      for (int rank = 0; rank < comm.world_size(); ++rank)
        EXPECT_EQ(full[(static_cast<std::size_t>(rank) + 1) * kShard - 1],
                  static_cast<std::byte>(seed + rank + round));
    }
  };
  std::thread gather([&] { use(*ranks.gather, 1); });
  use(*ranks.compute, 100);
  gather.join();
}

// Every rank has these bits, and threads have them too (communicator_test).
TEST(MpiRanks, SumsHaveTheBitsOfThreads) {
  Communicator& comm = *MpiWorld::ranks().compute;
  const int ranks_count = comm.world_size();
  const auto values_of = [&](int rank) {
    return test::encode(test::numbers(rank, 10'007, false), Element::bf16);
  };
  Bytes mine = values_of(comm.rank());
  const RankCall sum{Operation::all_reduce, Element::bf16, 0, "gradients"};
  comm.perform(HostCall{sum, {}, mine});
  auto threads = make_thread_communicators(ranks_count);
  Bytes expected;
  test::on_threads(threads, [&](Communicator& rank) {
    Bytes values = values_of(rank.rank());
    rank.perform(HostCall{sum, {}, values});
    if (rank.rank() == comm.rank()) expected = values;
  });
  EXPECT_TRUE(mine == expected);
}

}  // namespace
}  // namespace sluice::zero
