#include "sluice/zero/communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::zero {
namespace {

enum class Operation { all_gather, reduce_scatter, all_reduce, broadcast, barrier, part };

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_gather:
      return "all_gather";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::barrier:
      return "barrier";
    case Operation::part:
      return "the end of a collective";
  }
  return "?";
}

// The arguments of one rank. Operation, size and `detail` (data type or root) must agree over
// ranks.
struct Contribution {
  Operation operation = Operation::barrier;
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  int detail = 0;
};

// Where the ranks meet. Between a meeting that succeeded and the next one every rank is inside a
// collective, so buffers that were brought to it stay valid; a rank can leave (its communicator
// destroyed) only outside. Thread-safe.
class Group {
 public:
  explicit Group(int world_size)
      : world_size_(world_size),
        arriving_(static_cast<std::size_t>(world_size)),
        left_(static_cast<std::size_t>(world_size), false) {}

  int world_size() const { return world_size_; }

  // Blocks until every rank has come; returns what each brought. Throws Error when one has left and
  // will not come.
  std::vector<Contribution> meet(int rank, const Contribution& contribution) {
    MutexLock lock(mutex_);
    throw_if_left(rank, contribution.operation);
    arriving_[static_cast<std::size_t>(rank)] = contribution;
    const std::uint64_t meeting = meeting_;
    if (++arrived_count_ == world_size_) {
      arrived_count_ = 0;
      met_ = arriving_;
      ++meeting_;
      changed_.notify_all();
      return met_;
    }
    while (meeting_ == meeting) {
      throw_if_left(rank, contribution.operation);
      changed_.wait(mutex_);
    }
    // Nobody completes the next meeting without this rank, so met_ is still this one's.
    return met_;
  }

  void leave(int rank) {
    MutexLock lock(mutex_);
    left_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

 private:
  void throw_if_left(int rank, Operation operation) SLUICE_REQUIRES(mutex_) {
    for (int other = 0; other < world_size_; ++other) {
      if (other == rank || !left_[static_cast<std::size_t>(other)]) continue;
      throw Error("rank " + std::to_string(other) + " of " + std::to_string(world_size_) +
                  " has left; rank " + std::to_string(rank) + " cannot complete " +
                  name_of(operation) + " (see the error of rank " + std::to_string(other) + ")");
    }
  }

  const int world_size_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Contribution> arriving_ SLUICE_GUARDED_BY(mutex_);
  std::vector<Contribution> met_ SLUICE_GUARDED_BY(mutex_);  // of the last complete meeting
  std::vector<bool> left_ SLUICE_GUARDED_BY(mutex_);
  int arrived_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t meeting_ SLUICE_GUARDED_BY(mutex_) = 0;
};

// The one place where a call's arguments are judged. Every rank judges the same contributions, so
// that all of them throw or none. Empty when all is well.
std::string find_mistake(const std::vector<Contribution>& all) {
  const Contribution& first = all.front();
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const Contribution& other = all[rank];
    if (other.operation != first.operation) {
      return std::string("ranks disagree: rank 0 called ") + name_of(first.operation) + ", rank " +
             std::to_string(rank) + " " + name_of(other.operation);
    }
    if (other.size_bytes != first.size_bytes || other.detail != first.detail) {
      return std::string(name_of(first.operation)) + ": ranks disagree: rank 0 brought " +
             std::to_string(first.size_bytes) + " bytes, rank " + std::to_string(rank) + " " +
             std::to_string(other.size_bytes) + " (data type or root " +
             std::to_string(first.detail) + " and " + std::to_string(other.detail) + ")";
    }
  }
  std::size_t element_bytes = 1;
  if (first.operation == Operation::reduce_scatter) {
    element_bytes = size_of(static_cast<DType>(first.detail));
  } else if (first.operation == Operation::broadcast) {
    if (first.detail < 0 || static_cast<std::size_t>(first.detail) >= all.size()) {
      return "broadcast from rank " + std::to_string(first.detail) + " of " +
             std::to_string(all.size());
    }
    return "";
  } else if (first.operation != Operation::all_gather) {
    return "";
  }
  if (first.size_bytes % (all.size() * element_bytes) != 0) {
    return std::string(name_of(first.operation)) + " of " + std::to_string(first.size_bytes) +
           " bytes: not divisible into " + std::to_string(all.size()) + " shards of elements of " +
           std::to_string(element_bytes) + " bytes";
  }
  return "";
}

float load_fp32(const std::byte* from, DType dtype) {
  if (dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DType::bf16 ? to_fp32(Bf16{bits}) : to_fp32(Fp16{bits});
}

void store_fp32(float value, std::byte* to, DType dtype) {
  if (dtype == DType::fp32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits = dtype == DType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
  std::memcpy(to, &bits, sizeof(bits));
}

// Sums [begin_bytes, begin_bytes + size_bytes) of all ranks into that place of `own`. Other ranks
// read and write other shards meanwhile.
void sum_shard(const std::vector<Contribution>& all, std::byte* own, std::size_t begin_bytes,
               std::size_t size_bytes, DType dtype) {
  constexpr std::size_t kBlock =
      1024;  // elements: the sums of one block stay in the first-level cache
  const std::size_t element_bytes = size_of(dtype);
  const std::size_t count = size_bytes / element_bytes;
  std::array<float, kBlock> sums{};
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t block = std::min(kBlock, count - begin);
    const std::size_t block_offset = begin_bytes + begin * element_bytes;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const std::byte* from = all[rank].data + block_offset;
      for (std::size_t i = 0; i < block; ++i) {
        const float value = load_fp32(from + i * element_bytes, dtype);
        sums[i] = rank == 0 ? value : sums[i] + value;
      }
    }
    for (std::size_t i = 0; i < block; ++i) {
      store_fp32(sums[i], own + block_offset + i * element_bytes, dtype);
    }
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~ThreadCommunicator() override { group_->leave(rank_); }
  ThreadCommunicator(const ThreadCommunicator&) = delete;
  ThreadCommunicator& operator=(const ThreadCommunicator&) = delete;

  int rank() const override { return rank_; }
  int world_size() const override { return group_->world_size(); }

  void all_gather(std::span<std::byte> full) override {
    const Contribution mine{Operation::all_gather, full.data(), full.size(), 0};
    collective(mine, [&](const std::vector<Contribution>& all) {
      const std::size_t shard = full.size() / all.size();
      if (shard == 0) return;
      for (std::size_t other = 0; other < all.size(); ++other) {
        if (static_cast<int>(other) == rank_) continue;
        std::memcpy(full.data() + other * shard, all[other].data + other * shard, shard);
      }
    });
  }

  void reduce_scatter(std::span<std::byte> full, DType dtype) override {
    const Contribution mine{Operation::reduce_scatter, full.data(), full.size(),
                            static_cast<int>(dtype)};
    collective(mine, [&](const std::vector<Contribution>& all) {
      const std::size_t shard = full.size() / all.size();
      sum_shard(all, full.data(), static_cast<std::size_t>(rank_) * shard, shard, dtype);
    });
  }

  void all_reduce(std::span<double> values) override {
    const std::span<std::byte> bytes = std::as_writable_bytes(values);
    std::vector<double> sums(values.size());
    collective(Contribution{Operation::all_reduce, bytes.data(), bytes.size(), 0},
               [&](const std::vector<Contribution>& all) {
                 for (std::size_t i = 0; i < sums.size(); ++i) {
                   for (const Contribution& other : all) {
                     double value = 0;
                     std::memcpy(&value, other.data + i * sizeof(value), sizeof(value));
                     sums[i] += value;
                   }
                 }
               });
    // Only now has every rank read the others' numbers.
    std::copy(sums.begin(), sums.end(), values.begin());
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    collective(Contribution{Operation::broadcast, bytes.data(), bytes.size(), root},
               [&](const std::vector<Contribution>& all) {
                 if (rank_ == root || bytes.empty()) return;
                 std::memcpy(bytes.data(), all[static_cast<std::size_t>(root)].data, bytes.size());
               });
  }

  void barrier() override {
    collective(Contribution{}, [](const std::vector<Contribution>&) {});
  }

 private:
  // Meets, works on what the others brought, and parts: nobody returns while another still reads
  // its buffer. `work` does not throw: a rank that left in between would take its buffer away.
  template <typename Work>
  void collective(const Contribution& mine, const Work& work) {
    const std::vector<Contribution> all = group_->meet(rank_, mine);
    const std::string mistake = find_mistake(all);
    if (mistake.empty()) work(all);
    group_->meet(rank_, Contribution{Operation::part, nullptr, 0, 0});
    SLUICE_CHECK(mistake.empty(), mistake);
  }

  const std::shared_ptr<Group> group_;  // shared by the ranks
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int world_size) {
  SLUICE_CHECK(world_size >= 1, "world size of " + std::to_string(world_size));
  const auto group = std::make_shared<Group>(world_size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  ranks.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return ranks;
}

// A group of one: no other rank to copy from, to sum or to wait for.
std::unique_ptr<Communicator> make_single_rank() {
  return std::move(make_thread_communicators(1).front());
}

}  // namespace sluice::zero
