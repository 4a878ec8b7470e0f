// Communicators that take calls on device memory, over ones that work on host memory.

#include "sluice/zero/device_ranks.hpp"

#include <atomic>
#include <chrono>

#include "communicator_conformance.hpp"
#include "device_calls.hpp"
#include "sluice/zero/ranks.hpp"

namespace sluice::zero {
namespace {

using test::begin_on_device;
using test::Bytes;
using test::CommunicatorCase;
using test::CommunicatorConformance;
using test::message_of;
using test::on_threads;
using testing::AllOf;
using testing::HasSubstr;

// Ranks that are threads, each with a device of its own.
class DeviceRanks {
 public:
  explicit DeviceRanks(int world_size, std::size_t staging_bytes = StagingOptions::kStagingBytes) {
    for (auto& host : make_thread_communicators(world_size)) {
      devices_.push_back(offload::make_host_device({}));
      pools_.push_back(std::make_unique<offload::MemoryPool>(
          offload::Tier::host, offload::kUnlimited, offload::make_host_source()));
      workers_.push_back(std::make_unique<Worker>("results"));
      ranks.push_back(make_staged_communicator(
          std::move(host), {devices_.back().get(), pools_.back().get(), staging_bytes}));
    }
  }

  offload::Device& device_of(const Communicator& comm) {
    return *devices_[static_cast<std::size_t>(comm.rank())];
  }
  std::uint64_t staging_bytes(std::size_t rank) const { return pools_[rank]->usage().live_bytes; }
  Ticket begin(Communicator& comm, const RankCall& call, const Bytes& input, Bytes& output) {
    return begin_on_device(comm, device_of(comm), *workers_[static_cast<std::size_t>(comm.rank())],
                           call, input, output);
  }

 private:
  std::vector<std::unique_ptr<offload::Device>> devices_;
  std::vector<std::unique_ptr<offload::MemoryPool>> pools_;
  std::vector<std::unique_ptr<Worker>> workers_;

 public:
  std::vector<std::unique_ptr<Communicator>> ranks;  // ends before its devices
};

CommunicatorCase on_host_memory(int world_size) {
  return {"staged, on host memory", world_size, [world_size](const auto& body) {
            DeviceRanks ranks(world_size);
            on_threads(ranks.ranks, body);
          }};
}

// `staging_bytes`: a few KiB make parts of every long call.
CommunicatorCase on_device_memory(int world_size, std::size_t staging_bytes) {
  const auto current = std::make_shared<DeviceRanks*>(nullptr);
  CommunicatorCase each{"staged, on device memory", world_size,
                        [world_size, staging_bytes, current](const auto& body) {
                          DeviceRanks ranks(world_size, staging_bytes);
                          *current = &ranks;
                          on_threads(ranks.ranks, body);
                        }};
  each.begin = [current](Communicator& comm, const RankCall& call, Bytes& input, Bytes& output) {
    return (*current)->begin(comm, call, input, output);
  };
  return each;
}

INSTANTIATE_TEST_SUITE_P(Staged, CommunicatorConformance,
                         testing::Values(on_host_memory(2), on_device_memory(1, 4096),
                                         on_device_memory(2, StagingOptions::kStagingBytes),
                                         on_device_memory(2, 20'000), on_device_memory(4, 20'000)));

constexpr std::size_t kShardBytes = 100'000;

Ticket gather(DeviceRanks& ranks, Communicator& comm, Bytes& full) {
  return ranks.begin(comm, {Operation::all_gather, Element::bytes, 0, "unit h.3"}, {}, full);
}

TEST(StagedRanks, CountACallOnceWithTheBytesOfItsParts) {
  DeviceRanks ranks(2, 20'000);
  std::atomic<int> told{0};
  on_threads(ranks.ranks, [&](Communicator& comm) {
    comm.observe([&told](const CallCounts& one, const std::string& label) {
      EXPECT_EQ(label, "unit h.3");
      EXPECT_EQ(one.message_bytes, 2 * kShardBytes);
      ++told;
    });
    Bytes full(2 * kShardBytes);
    gather(ranks, comm, full).finish();
    const CommunicatorCounters counters = comm.counters();
    ASSERT_EQ(counters.calls.size(), 1U);
    EXPECT_EQ(counters.calls[0].calls, 1U);
    EXPECT_EQ(counters.calls[0].message_bytes, 2 * kShardBytes);
    EXPECT_EQ(counters.sent_bytes(), kShardBytes);
    EXPECT_EQ(counters.received_bytes(), kShardBytes);
    EXPECT_GT(counters.header_bytes, 0U);
  });
  EXPECT_EQ(told, 2);
}

TEST(StagedRanks, TakeTheMemoryThatTheyWereGiven) {
  const DeviceRanks ranks(2, 20'480);
  EXPECT_LE(ranks.staging_bytes(0), 20'480U);
  EXPECT_GT(ranks.staging_bytes(0), 15'000U);
  const std::string error = message_of<Error>([] { const DeviceRanks too_small(4, 512); });
  EXPECT_THAT(error, HasSubstr("512 bytes of staging memory for 4 ranks"));
}

TEST(StagedRanks, CallsWhoseSizesDifferFailInTheirFirstPart) {
  DeviceRanks ranks(2, 20'000);
  on_threads(ranks.ranks, [&](Communicator& comm) {
    Bytes full((comm.rank() == 0 ? 2 : 4) * kShardBytes);
    const std::string error = message_of<Error>([&] { gather(ranks, comm, full).finish(); });
    EXPECT_THAT(error, AllOf(HasSubstr("unit h.3 (part 1 of "), HasSubstr("rank 1")));
    Bytes equal(2 * kShardBytes);
    gather(ranks, comm, equal).finish();
  });
}

TEST(StagedRanks, AnAbortEndsTheCallsOfBothRanksAndSaysWhy) {
  DeviceRanks ranks(2, 20'000);
  Bytes first(2 * kShardBytes);
  Bytes second(2 * kShardBytes);
  Ticket waits = gather(ranks, *ranks.ranks[0], first);
  ranks.ranks[1]->abort("the disk is full");
  EXPECT_THAT(message_of<Error>([&] { waits.finish(); }), HasSubstr("the disk is full"));
  EXPECT_THAT(message_of<Error>([&] { gather(ranks, *ranks.ranks[1], second).finish(); }),
              HasSubstr("the disk is full"));
}

TEST(StagedRanks, ARankThatIsDestroyedDuringACallEndsTheOthersCalls) {
  DeviceRanks ranks(3, 20'000);
  Bytes full[2] = {Bytes(3 * kShardBytes), Bytes(3 * kShardBytes)};
  Ticket waits = gather(ranks, *ranks.ranks[0], full[0]);
  Ticket abandoned = gather(ranks, *ranks.ranks[1], full[1]);
  ranks.ranks[1].reset();
  EXPECT_THAT(message_of<Error>([&] { abandoned.finish(); }), HasSubstr("destroyed"));
  EXPECT_THAT(message_of<Error>([&] { waits.finish(); }), HasSubstr("rank 1"));
}

// Each of the pair has an order of its own: a call of the one does not wait for those of the other.
TEST(PairedRanks, CallsOnHostMemoryPassThoseOnDeviceMemory) {
  DeviceRanks ranks(2);
  auto hosts = make_thread_communicators(2);
  std::vector<std::unique_ptr<Communicator>> pairs;
  for (std::size_t rank = 0; rank < 2; ++rank)
    pairs.push_back(make_paired_communicator(std::move(hosts[rank]), std::move(ranks.ranks[rank])));
  Bytes full(2 * kShardBytes);
  Ticket of_device = gather(ranks, *pairs[0], full);  // the other rank comes later
  on_threads(pairs, [](Communicator& comm) {
    std::array<double, 1> one{1.0};
    comm.all_reduce(one, "norms");
    EXPECT_EQ(one[0], 2);
  });
  EXPECT_FALSE(of_device.done());
  Bytes other(2 * kShardBytes);
  gather(ranks, *pairs[1], other).finish();
  of_device.finish();
  EXPECT_EQ(pairs[0]->counters().calls.size(), 2U);
  EXPECT_EQ(pairs[0]->counters().sent_bytes(), kShardBytes + sizeof(double));
  Ticket waits = gather(ranks, *pairs[0], full);
  pairs[1]->abort("the disk is full");
  EXPECT_THAT(message_of<Error>([&] { waits.finish(); }), HasSubstr("the disk is full"));
}

TEST(PairedRanks, NeedOneOnTheDeviceAndEqualRanks) {
  DeviceRanks ranks(2);
  auto hosts = make_thread_communicators(2);
  EXPECT_THROW(make_paired_communicator(std::move(hosts[0]), std::move(hosts[1])), InvalidArgument);
  EXPECT_THROW(make_paired_communicator(make_single_rank(), std::move(ranks.ranks[1])),
               InvalidArgument);
}

TEST(DeviceRanks, RefuseToBeMadeOfNothing) {
  const auto device = offload::make_host_device({});
  offload::MemoryPool pool(offload::Tier::host, offload::kUnlimited, offload::make_host_source());
  EXPECT_THROW(make_staged_communicator(nullptr, {device.get(), &pool}), InvalidArgument);
  EXPECT_THROW(make_staged_communicator(make_single_rank(), {nullptr, &pool}), InvalidArgument);
  EXPECT_THROW(make_staged_communicator(make_single_rank(), {device.get()}), InvalidArgument);
  EXPECT_THROW(make_paired_communicator(nullptr, make_single_rank()), InvalidArgument);
  EXPECT_THROW(make_paired_communicator(make_single_rank(), nullptr), InvalidArgument);
}

}  // namespace
}  // namespace sluice::zero
