#pragma once
// Ranks of one process with a fake GPU each, and NCCL between them.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "fake_nccl.hpp"
#include "nccl/nccl_communicator.hpp"
#include "sluice/base/worker.hpp"
#include "zero/device_calls.hpp"

namespace sluice::zero::test {

using offload::test::FakeCuda;

// A call that waits for nothing ends within this time.
inline void give_time_for_mistakes() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// Ranks with a device each, in one process.
class FakeRanks {
 public:
  explicit FakeRanks(int world_size) : world_size_(world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      cudaStream_t stream = nullptr;
      EXPECT_EQ(cuda->stream_create(&stream, 0), cudaSuccess);
      streams.push_back(stream);
      devices.push_back(
          offload::cuda::make_device(cuda, {.memory_bytes = 8U << 20U, .compute_stream = stream}));
      workers.push_back(std::make_unique<Worker>("results"));
    }
  }
  ~FakeRanks() {
    ranks.clear();
    devices.clear();
    for (cudaStream_t stream : streams) static_cast<void>(cuda->stream_destroy(stream));
  }
  FakeRanks(const FakeRanks&) = delete;
  FakeRanks& operator=(const FakeRanks&) = delete;

  NcclOptions options(int rank, double limit_seconds = 60) {
    return {rank,   world_size_, devices[static_cast<std::size_t>(rank)].get(),
            &store, "gather",    std::chrono::duration<double>(limit_seconds)};
  }
  // Every rank joins on a thread of its own.
  void join(double limit_seconds = 60) {
    ranks.resize(static_cast<std::size_t>(world_size_));
    std::vector<std::thread> threads;
    threads.reserve(ranks.size());
    for (int rank = 0; rank < world_size_; ++rank) {
      threads.emplace_back([this, rank, limit_seconds] {
        ranks[static_cast<std::size_t>(rank)] =
            make_nccl_communicator(nccl, options(rank, limit_seconds));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // A call on copies in the memory of the rank's device; the ticket ends when what it wrote is
  // back.
  Ticket begin(Communicator& comm, const RankCall& call, const Bytes& input, Bytes& output) {
    const auto me = static_cast<std::size_t>(comm.rank());
    return begin_on_device(comm, *devices[me], *workers[me], call, input, output);
  }

  const std::shared_ptr<FakeCuda> cuda = std::make_shared<FakeCuda>();
  const std::shared_ptr<FakeNccl> nccl = std::make_shared<FakeNccl>(*cuda);
  MemoryStore store;
  std::vector<cudaStream_t> streams;  // of compute work
  std::vector<std::unique_ptr<offload::Device>> devices;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<Communicator>> ranks;

 private:
  const int world_size_;
};

}  // namespace sluice::zero::test
