#pragma once
// FakeNccl: the calls of NCCL on a machine without a GPU, between ranks that are threads. Its work
// runs on the streams of a FakeCuda, in their order. Calls can be late, stay in progress for some
// looks, and fail, at once or late. Sums are taken in another order than Sluice's.

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory_store.hpp"
#include "nccl/nccl_api.hpp"
#include "offload/cuda/fake_cuda.hpp"
#include "sluice/base/dtype.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/zero/nccl.hpp"

namespace sluice::zero::test {

// The ranks of one communicator: where they meet, and what they bring. Thread-safe.
class FakeWorld {
 public:
  explicit FakeWorld(int ranks) : ranks_(ranks) {}

  int ranks() const { return ranks_; }
  // Blocks until all ranks have brought something to meeting `number`, or one has aborted: nullopt.
  std::optional<std::vector<NcclMemory>> meet(std::uint64_t number, int rank,
                                              const NcclMemory& memory) {
    MutexLock lock(mutex_);
    auto& brought = meetings_[number];
    brought[rank] = memory;
    changed_.notify_all();
    while (!aborted_ && static_cast<int>(brought.size()) < ranks_) changed_.wait(mutex_);
    if (aborted_) return std::nullopt;
    std::vector<NcclMemory> all;
    for (const auto& [each, theirs] : brought) all.push_back(theirs);
    return all;
  }
  // A message of `from` to `to`. The receiver copies.
  void post(int from, int to, std::vector<std::byte> bytes) {
    MutexLock lock(mutex_);
    messages_[{from, to}].push_back(std::move(bytes));
    changed_.notify_all();
  }
  std::optional<std::vector<std::byte>> take(int from, int to) {
    MutexLock lock(mutex_);
    auto& queue = messages_[{from, to}];
    while (!aborted_ && queue.empty()) changed_.wait(mutex_);
    if (queue.empty()) return std::nullopt;
    std::vector<std::byte> bytes = std::move(queue.front());
    queue.erase(queue.begin());
    return bytes;
  }
  void abort() {
    MutexLock lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  const int ranks_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, std::map<int, NcclMemory>> meetings_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, std::vector<std::vector<std::byte>>> messages_
      SLUICE_GUARDED_BY(mutex_);
  bool aborted_ SLUICE_GUARDED_BY(mutex_) = false;
};

class FakeNccl final : public NcclApi {
 public:
  explicit FakeNccl(offload::test::FakeCuda& cuda) : cuda_(cuda) {}

  // A test sets these before it begins.
  std::function<void()> before_work = [] {};  // on the stream
  int looks_in_progress = 0;                  // after each call that does not block

  void fail(const std::string& function, int nth, ncclResult_t result) {
    MutexLock lock(mutex_);
    faults_[function] = {calls_[function] + nth, result};
  }
  // async_error() tells it from now on.
  void fail_late(ncclResult_t result) {
    MutexLock lock(mutex_);
    late_ = result;
  }
  int calls(const std::string& function) {
    MutexLock lock(mutex_);
    return calls_[function];
  }

  std::string error_text(ncclResult_t result, ncclComm_t) override {
    return "a fault of the test (" + std::to_string(static_cast<int>(result)) + ")";
  }
  NcclResult get_unique_id(ncclUniqueId* id) override {
    std::strcpy(id->internal, "an id");
    return enter("get_unique_id");
  }
  // Ranks with one id meet; who comes first makes the world.
  NcclResult init_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                       ncclConfig_t* config) override {
    if (config->blocking != 0 || std::string(id.internal) != "an id") return ncclInvalidArgument;
    MutexLock lock(mutex_);
    const NcclResult begun = enter_locked("init_rank", ncclInProgress);
    if (begun != ncclInProgress) return begun;
    if (world_ == nullptr) world_ = std::make_shared<FakeWorld>(ranks);
    auto* made = new Comm{world_, rank, 0, looks_in_progress};
    comms_.push_back(std::unique_ptr<Comm>(made));
    ++joined_;
    *comm = reinterpret_cast<ncclComm_t>(made);
    return begun;
  }
  NcclResult async_error(ncclComm_t comm, ncclResult_t* error) override {
    MutexLock lock(mutex_);
    Comm& own = *of(comm);
    // Like NCCL's start, the communicator is ready once all ranks are there.
    const bool waits = joined_ < own.world->ranks() || own.looks > 0;
    if (own.looks > 0) --own.looks;
    *error = late_ != ncclSuccess ? late_ : (waits ? ncclInProgress : ncclSuccess);
    return enter_locked("async_error", ncclSuccess);
  }
  NcclResult finalize(ncclComm_t) override { return enter("finalize"); }
  NcclResult destroy(ncclComm_t) override { return enter("destroy"); }
  NcclResult abort(ncclComm_t comm) override {
    of(comm)->world->abort();
    return enter("abort");
  }
  NcclResult group_start() override { return enter("group_start"); }
  NcclResult group_end() override {
    if (const NcclResult result = enter("group_end"); result != ncclSuccess) return result;
    // The calls of a group run at once; in one stream's order, its sends come first.
    std::vector<Queued> group = std::exchange(group_of_thread, {});
    std::stable_partition(group.begin(), group.end(),
                          [](const Queued& each) { return each.run == &FakeNccl::run_send; });
    for (const Queued& each : group) launch(each);
    return ncclInProgress;
  }
  NcclResult all_gather(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return queue("all_gather", comm, stream, m, &FakeNccl::run_all_gather);
  }
  NcclResult reduce_scatter(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return queue("reduce_scatter", comm, stream, m, &FakeNccl::run_reduce_scatter);
  }
  NcclResult all_reduce(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return queue("all_reduce", comm, stream, m, &FakeNccl::run_all_reduce);
  }
  NcclResult broadcast(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return queue("broadcast", comm, stream, m, &FakeNccl::run_broadcast);
  }
  NcclResult reduce(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return queue("reduce", comm, stream, m, &FakeNccl::run_reduce);
  }
  NcclResult send(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return queue("send", comm, stream, m, &FakeNccl::run_send);
  }
  NcclResult receive(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return queue("receive", comm, stream, m, &FakeNccl::run_receive);
  }

 private:
  struct Comm {
    std::shared_ptr<FakeWorld> world;
    int rank = 0;
    std::uint64_t meetings = 0;  // by the stream
    int looks = 0;
  };
  using Run = void (FakeNccl::*)(Comm&, const NcclMemory&);
  struct Queued {
    Comm* comm = nullptr;
    void* stream = nullptr;
    NcclMemory memory;
    Run run = nullptr;
  };
  struct Fault {
    int nth = 0;
    ncclResult_t result = ncclSuccess;
  };

  static Comm* of(ncclComm_t comm) { return reinterpret_cast<Comm*>(comm); }
  NcclResult queue(const std::string& function, ncclComm_t comm, void* stream, const NcclMemory& m,
                   Run run) {
    if (const NcclResult result = enter(function); result != ncclSuccess) return result;
    group_of_thread.push_back({of(comm), stream, m, run});
    return ncclInProgress;
  }
  void launch(const Queued& each) {
    {
      MutexLock lock(mutex_);
      each.comm->looks = looks_in_progress;
    }
    cuda_.launch(static_cast<cudaStream_t>(each.stream), [this, each] {
      before_work();
      (this->*each.run)(*each.comm, each.memory);
    });
  }
  NcclResult enter(const std::string& function) {
    MutexLock lock(mutex_);
    return enter_locked(function, ncclSuccess);
  }
  NcclResult enter_locked(const std::string& function, ncclResult_t otherwise)
      SLUICE_REQUIRES(mutex_) {
    const int nth = ++calls_[function];
    const auto fault = faults_.find(function);
    return fault != faults_.end() && nth == fault->second.nth ? fault->second.result : otherwise;
  }

  static std::size_t size_of(ncclDataType_t type) {
    if (type == ncclUint8) return 1;
    if (type == ncclFloat64) return 8;
    return type == ncclFloat16 || type == ncclBfloat16 ? 2 : 4;
  }
  static std::size_t bytes_of(const NcclMemory& m) { return m.count * size_of(m.type); }
  std::vector<std::byte> content(const void* from, std::size_t size_bytes) {
    const std::byte* at = cuda_.as_device(from);
    return {at, at + size_bytes};
  }
  void write(void* to, const std::vector<std::byte>& bytes) {
    std::copy(bytes.begin(), bytes.end(), cuda_.as_device(to));
  }
  // Reads with `read` while every rank waits, writes when all have read.
  template <typename Read>
  void collective(Comm& comm, const NcclMemory& memory, const Read& read) {
    const auto all = comm.world->meet(comm.meetings++, comm.rank, memory);
    if (!all) return;
    const std::optional<std::vector<std::byte>> result = read(*all);
    if (comm.world->meet(comm.meetings++, comm.rank, memory) && result) write(memory.to, *result);
  }
  // From the last rank to the first.
  std::vector<std::byte> sum(const std::vector<NcclMemory>& all, std::size_t begin,
                             std::size_t size_bytes) {
    std::vector<std::byte> sum(size_bytes);
    const ncclDataType_t type = all.front().type;
    const std::size_t step = size_of(type);
    for (std::size_t i = 0; i < size_bytes; i += step) {
      double total = 0;
      for (auto each = all.rbegin(); each != all.rend(); ++each)
        total += load(cuda_.as_device(each->from) + begin + i, type);
      store(total, sum.data() + i, type);
    }
    return sum;
  }
  static double load(const std::byte* from, ncclDataType_t type) {
    double value = 0;
    float single = 0;
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, 2);
    if (type == ncclBfloat16) return to_fp32(Bf16{bits});
    if (type == ncclFloat16) return to_fp32(Fp16{bits});
    if (type == ncclFloat64) std::memcpy(&value, from, 8);
    if (type == ncclFloat32) std::memcpy(&single, from, 4);
    return type == ncclFloat64 ? value : single;
  }
  static void store(double value, std::byte* to, ncclDataType_t type) {
    const auto single = static_cast<float>(value);
    const std::uint16_t bits = type == ncclBfloat16 ? to_bf16(single).bits : to_fp16(single).bits;
    if (type == ncclFloat64) std::memcpy(to, &value, 8);
    if (type == ncclFloat32) std::memcpy(to, &single, 4);
    if (size_of(type) == 2) std::memcpy(to, &bits, 2);
  }

  void run_all_gather(Comm& comm, const NcclMemory& m) {
    collective(comm, m, [&](const std::vector<NcclMemory>& all) {
      std::vector<std::byte> full;
      for (const NcclMemory& each : all) {
        const auto shard = content(each.from, m.count);
        full.insert(full.end(), shard.begin(), shard.end());
      }
      return std::optional(full);
    });
  }
  void run_reduce_scatter(Comm& comm, const NcclMemory& m) {
    collective(comm, m, [&](const std::vector<NcclMemory>& all) {
      const std::size_t shard = bytes_of(m);
      return std::optional(sum(all, static_cast<std::size_t>(comm.rank) * shard, shard));
    });
  }
  void run_all_reduce(Comm& comm, const NcclMemory& m) {
    collective(comm, m, [&](const std::vector<NcclMemory>& all) {
      return std::optional(sum(all, 0, bytes_of(m)));
    });
  }
  void run_broadcast(Comm& comm, const NcclMemory& m) {
    collective(comm, m, [&](const std::vector<NcclMemory>& all) {
      return std::optional(content(all[static_cast<std::size_t>(m.peer)].from, m.count));
    });
  }
  void run_reduce(Comm& comm, const NcclMemory& m) {
    collective(comm, m, [&](const std::vector<NcclMemory>& all) {
      return comm.rank == m.peer ? std::optional(sum(all, 0, bytes_of(m))) : std::nullopt;
    });
  }
  void run_send(Comm& comm, const NcclMemory& m) {
    comm.world->post(comm.rank, m.peer, content(m.from, m.count));
  }
  void run_receive(Comm& comm, const NcclMemory& m) {
    if (const auto bytes = comm.world->take(m.peer, comm.rank)) write(m.to, *bytes);
  }

  offload::test::FakeCuda& cuda_;
  static inline thread_local std::vector<Queued> group_of_thread;
  Mutex mutex_;
  std::shared_ptr<FakeWorld> world_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Comm>> comms_ SLUICE_GUARDED_BY(mutex_);
  int joined_ SLUICE_GUARDED_BY(mutex_) = 0;
  ncclResult_t late_ SLUICE_GUARDED_BY(mutex_) = ncclSuccess;
  std::map<std::string, int> calls_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, Fault> faults_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::zero::test
