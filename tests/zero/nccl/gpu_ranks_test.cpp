// Communicators of ranks with a GPU: one rank of NCCL, and ranks that share the GPU through host
// memory, in the suite that all communicators pass.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory_store.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/zero/device_ranks.hpp"
#include "sluice/zero/nccl.hpp"
#include "zero/communicator_conformance.hpp"
#include "zero/device_calls.hpp"

namespace sluice::zero {
namespace {

using test::begin_on_device;
using test::Bytes;
using test::CommunicatorCase;
using test::CommunicatorConformance;
using test::on_threads;

// Ranks of this process, each with memory of its own on the first GPU.
class GpuRanks {
 public:
  explicit GpuRanks(int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      devices.push_back(offload::make_cuda_device({.memory_bytes = 64U << 20U}));
      pools.push_back(std::make_unique<offload::MemoryPool>(
          offload::Tier::pinned, offload::kUnlimited, devices.back()->make_pinned_source()));
      workers.push_back(std::make_unique<Worker>("results"));
    }
  }
  Ticket begin(Communicator& comm, const RankCall& call, const Bytes& input, Bytes& output) {
    const auto me = static_cast<std::size_t>(comm.rank());
    return begin_on_device(comm, *devices[me], *workers[me], call, input, output);
  }

  test::MemoryStore store;
  std::vector<std::unique_ptr<offload::Device>> devices;
  std::vector<std::unique_ptr<offload::MemoryPool>> pools;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<Communicator>> ranks;  // end before their devices
};

std::string why_no_gpu() {
  return offload::find_cuda_devices().why_none;
}

CommunicatorCase on_gpu(const std::string& name, int world_size,
                        const std::function<void(GpuRanks&)>& join) {
  const auto current = std::make_shared<GpuRanks*>(nullptr);
  CommunicatorCase each{name, world_size, [world_size, join, current](const auto& body) {
                          if (const std::string why = why_no_gpu(); !why.empty())
                            GTEST_SKIP() << "needs an NVIDIA GPU: " << why;
                          GpuRanks ranks(world_size);
                          *current = &ranks;
                          join(ranks);
                          on_threads(ranks.ranks, body);
                        }};
  each.begin = [current](Communicator& comm, const RankCall& call, Bytes& input, Bytes& output) {
    return (*current)->begin(comm, call, input, output);
  };
  return each;
}

CommunicatorCase one_rank_of_nccl() {
  CommunicatorCase each = on_gpu("NCCL", 1, [](GpuRanks& ranks) {
    ranks.ranks.push_back(make_nccl_communicator(
        {.device = ranks.devices[0].get(), .store = &ranks.store, .name = "one"}));
  });
  each.sums_in_rank_order = false;
  each.ranks_compare_calls = false;
  return each;
}

CommunicatorCase staged(int world_size, std::size_t staging_bytes) {
  return on_gpu("staged", world_size, [world_size, staging_bytes](GpuRanks& ranks) {
    auto hosts = make_thread_communicators(world_size);
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      ranks.ranks.push_back(make_staged_communicator(
          std::move(hosts[rank]),
          {ranks.devices[rank].get(), ranks.pools[rank].get(), staging_bytes}));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Gpu, CommunicatorConformance,
                         testing::Values(one_rank_of_nccl(),
                                         staged(2, StagingOptions::kStagingBytes),
                                         staged(3, 20'000)));

}  // namespace
}  // namespace sluice::zero
