#pragma once
// ExchangeCommunicator: every operation of a Communicator on host memory, made of messages between
// pairs of ranks. Each rank sums its part itself, in rank order, from what the others send or lend
// it. So threads and MPI give the same bits. Not installed.

#include <atomic>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exchange/rank_messages.hpp"
#include "exchange/transport.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::zero {

struct ExchangeOptions {
  Executor* executor = nullptr;       // shares large sums; may be null
  std::shared_ptr<Peers> peers = {};  // shared by the communicators of a rank; null: threads
  MessageOptions messages = {};
  // Bytes of a sum that are exchanged at a time: the parts stay in the cache of a core. Where the
  // transport lends nothing, a communicator holds 2 * (world_size - 1) blocks once it has summed.
  std::size_t block_bytes = std::size_t{1} << 20U;
};

class ExchangeCommunicator final : public Communicator {
 public:
  using Communicator::begin;

  ExchangeCommunicator(std::unique_ptr<Transport> transport, const ExchangeOptions& options);
  ~ExchangeCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  Ticket begin(const HostCall& call) override;
  void perform(const HostCall& call) override;
  void abort(const AbortReason& why) override;
  CommunicatorCounters counters() const override { return counters_.counters(); }
  void observe(CallObserver observer) override { counters_.observe(std::move(observer)); }

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t size_bytes = 0;
  };
  // A call that was begun: it may be queued. It stays in place.
  struct Begun {
    HostCall call;
    RankMessages::Announced announced;
    std::exception_ptr error;  // why it cannot be made
    // An all-gather is ahead when its payload is under way before its turn.
    bool is_ahead = false;
    RankMessages::Batch payload;
    Traffic traffic;  // of what began before its turn
  };
  void announce(Begun& begun);
  void run(Begun& begun);
  std::span<const std::byte> offered_to(const HostCall& call, int other) const;
  void agree(Begun& begun);
  void move(Begun& begun);
  void begin_all_gather_of(Begun& begun);
  void gather_offered(std::span<std::byte> full);
  void all_gather(Begun& begun);
  void start_next(const Begun& current);
  // On one host a receive may copy right away what the other rank has sent. With the sends begun
  // first, the other rank copies meanwhile. Between hosts, MPI copies a message twice that finds no
  // receive.
  template <typename Send, typename Receive>
  void begin_both(const Send& send, const Receive& receive) const {
    if (options_.messages.between_hosts) {
      receive();
      send();
    } else {
      send();
      receive();
    }
  }
  std::span<std::byte> shard_of(std::span<std::byte> full, int rank) const;
  Range summed_by(int rank, const HostCall& call) const;
  std::span<std::byte> part_summed_by(int rank, const HostCall& call) const;
  void gather_parts(const HostCall& call);
  void sum(Begun& begun);
  void sum_offered(std::span<std::byte> own, Element element);
  void sum_received(const HostCall& call);
  void begin_block(RankMessages::Batch& batch, const HostCall& call, std::size_t block);
  void sum_block(std::span<std::byte> own, std::size_t block, Element element);
  std::span<std::byte> part_of(int other, std::size_t block);
  void broadcast_from(int root, std::span<std::byte> bytes);
  void scatter_from(const HostCall& call);
  void gather_to(const HostCall& call);

  const ExchangeOptions options_;
  const int rank_;
  const int world_size_;
  std::vector<int> others_;           // all ranks but this one
  std::vector<std::byte> workspace_;  // blocks of the other ranks, two for each
  CallCounters counters_;
  std::atomic<int> under_way_{0};  // of begin()
  Mutex running_;                  // one call at a time, and no last words during a call
  Traffic ahead_;                  // of payload that the current call started for the next one
  Mutex mutex_;
  std::deque<std::shared_ptr<Begun>> queue_ SLUICE_GUARDED_BY(mutex_);  // of begin(), not yet run
  std::vector<Ticket> announced_ SLUICE_GUARDED_BY(mutex_);  // of abort(): kept, since they block
  RankMessages messages_;  // used by the thread that holds running_, but for announcements
  Worker worker_;          // last: its tasks use the rest
};

}  // namespace sluice::zero
