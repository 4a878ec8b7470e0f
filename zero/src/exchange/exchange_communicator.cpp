#include "exchange/exchange_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "exchange/call_header.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"

namespace sluice::zero {

namespace {

std::vector<int> all_but(int rank, int world_size) {
  std::vector<int> others;
  for (int other = 0; other < world_size; ++other)
    if (other != rank) others.push_back(other);
  return others;
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

ExchangeCommunicator::ExchangeCommunicator(std::unique_ptr<Transport> transport,
                                           const ExchangeOptions& options)
    : options_(options),
      rank_(transport->rank()),
      world_size_(transport->world_size()),
      others_(all_but(rank_, world_size_)),
      messages_(std::move(transport), options.peers, options.messages),
      worker_("rank-" + std::to_string(rank_)) {}

ExchangeCommunicator::~ExchangeCommunicator() {
  if (under_way_ > 0) abort("its communicator was destroyed during a call");
}

Ticket ExchangeCommunicator::begin(const HostCall& call) {
  ++under_way_;
  const auto begun = std::make_shared<Begun>();
  begun->call = call;
  announce(*begun);
  {
    MutexLock lock(mutex_);
    queue_.push_back(begun);
  }
  return worker_.begin([this, begun] {
    struct Ended {
      std::atomic<int>& count;
      ~Ended() { --count; }
    } const ended{under_way_};
    {
      MutexLock lock(mutex_);
      queue_.pop_front();
    }
    run(*begun);
  });
}

// Calls that were begun come first.
void ExchangeCommunicator::perform(const HostCall& call) {
  if (under_way_ > 0) return begin(call).finish();
  Begun begun;
  begun.call = call;
  announce(begun);
  run(begun);
}

void ExchangeCommunicator::abort(const std::string& why) {
  messages_.abort(why);
  Ticket announced = worker_.begin([this] {
    MutexLock lock(running_);
    messages_.announce_abort();
  });
  MutexLock lock(mutex_);
  announced_.push_back(std::move(announced));
}

// While the calls before it run, its header is on its way.
void ExchangeCommunicator::announce(Begun& begun) {
  const HostCall& call = begun.call;
  begun.error = error_of([&] {
    begun.announced.others = others_;
    if (is_pairwise(call.operation)) {
      // A partner that does not exist cannot be told.
      const std::string mistake =
          find_mistake(call, call.input.size(), call.output.size(), rank_, world_size_);
      SLUICE_CHECK(mistake.empty(), "rank " + std::to_string(rank_) + ": " + mistake);
      begun.announced.others = std::span(&call.root, 1);
    }
    begun.announced.header = header_of(call, rank_);
    messages_.announce(begun.announced);
  });
}

void ExchangeCommunicator::run(Begun& begun) {
  if (begun.error) std::rethrow_exception(begun.error);
  const HostCall& call = begun.call;
  MutexLock lock(running_);
  const auto begin = std::chrono::steady_clock::now();
  const Traffic before = messages_.traffic();
  ahead_ = {};
  if (begun.is_ahead) {
    messages_.resume(begun.announced);
  } else {
    agree(begun);
  }
  try {
    move(begun);
  } catch (const std::exception& error) {
    messages_.abort_all(error.what());
    begun.payload = {};  // the caller's memory is its own again
    begun.offered = {};
    throw;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const Traffic own = messages_.traffic() - before - ahead_ + begun.traffic;
  counters_.add({call.operation, std::max(call.input.size(), call.output.size()), 1, own.sent_bytes,
                 own.received_bytes, elapsed.count()},
                call.label);
}

// Where ranks share memory, the others find the bytes that this rank sends together with its
// header: a small call then waits once less. Its header says whether a rank offers (offers()).
void ExchangeCommunicator::offer(Begun& begun) {
  if (!messages_.lends() || !offers(begun.announced.header, world_size_)) return;
  const bool is_gather = begun.call.operation == Operation::all_gather;
  for (const int other : others_)
    messages_.begin_send(begun.offered, other,
                         shard_of(begun.call.output, is_gather ? rank_ : other));
}

// All ranks that take part make this call; else all of them throw.
void ExchangeCommunicator::agree(Begun& begun) {
  offer(begun);
  try {
    const std::span<const CallHeader* const> calls = messages_.exchange(begun.announced);
    counters_.add_headers(begun.announced.others.size() * sizeof(CallHeader));
    const std::string mistake = find_mistake(calls, world_size_);
    if (mistake.empty()) return;
    const bool mixed = std::ranges::any_of(
        calls, [](const CallHeader* each) { return is_pairwise(each->call().operation); });
    // Ranks outside the pair wait for a call that does not come.
    if (mixed) messages_.abort_all(mistake);
    if (messages_.lends()) {
      for (const CallHeader* each : calls)
        if (each->rank != rank_ && offers(*each, world_size_)) messages_.refuse(each->rank);
    }
    throw InvalidArgument("rank " + std::to_string(rank_) + ": " + mistake);
  } catch (...) {
    begun.offered = {};
    throw;
  }
}

void ExchangeCommunicator::move(Begun& begun) {
  const HostCall& call = begun.call;
  const std::span<std::byte> full = call.output;
  RankMessages::Batch batch;
  switch (call.operation) {
    case Operation::all_gather:
      return all_gather(begun);
    case Operation::reduce_scatter:
      return reduce_scatter(begun);
    case Operation::all_reduce: {
      const Ranges ranges = split_elements(full.size(), size_of(call.element));
      sum_ranges(full, ranges, call.element);
      return gather_ranges(full, ranges);
    }
    case Operation::reduce: {
      Ranges ranges(static_cast<std::size_t>(world_size_));
      ranges[static_cast<std::size_t>(call.root)] = {0, full.size()};
      return sum_ranges(full, ranges, call.element);
    }
    case Operation::broadcast:
      return broadcast_from(call.root, full);
    case Operation::scatter:
      return scatter_from(call);
    case Operation::gather:
      return gather_to(call);
    case Operation::send:
      messages_.begin_send(batch, call.root, call.input);
      return messages_.finish(batch);
    case Operation::receive:
      messages_.begin_receive(batch, call.root, call.output);
      return messages_.finish(batch);
    case Operation::barrier:
      return;  // every rank has said that it is here
  }
}

std::span<std::byte> ExchangeCommunicator::shard_of(std::span<std::byte> full, int rank) const {
  const std::size_t shard = full.size() / static_cast<std::size_t>(world_size_);
  return full.subspan(static_cast<std::size_t>(rank) * shard, shard);
}

ExchangeCommunicator::Ranges ExchangeCommunicator::equal_ranges(std::size_t size_bytes) const {
  const std::size_t shard = size_bytes / static_cast<std::size_t>(world_size_);
  Ranges ranges;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(world_size_); ++rank)
    ranges.push_back({rank * shard, shard});
  return ranges;
}

// Shares that differ by one element at most.
ExchangeCommunicator::Ranges ExchangeCommunicator::split_elements(std::size_t size_bytes,
                                                                  std::size_t element_bytes) const {
  const auto ranks = static_cast<std::size_t>(world_size_);
  const std::size_t count = size_bytes / element_bytes;
  Ranges ranges;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t share = (count / ranks + (rank < count % ranks ? 1 : 0)) * element_bytes;
    ranges.push_back({begin, share});
    begin += share;
  }
  return ranges;
}

void ExchangeCommunicator::begin_all_gather_of(Begun& begun) {
  const std::span<std::byte> full = begun.call.output;
  const auto send = [&] {
    if (messages_.lends()) return;  // offered before
    for (const int other : others_)
      messages_.begin_send(begun.payload, other, shard_of(full, rank_));
  };
  const auto receive = [&] {
    for (const int other : others_)
      messages_.begin_receive(begun.payload, other, shard_of(full, other));
  };
  begin_both(send, receive);
}

// The next all-gather's payload starts behind its own: a network has no gap between the two.
void ExchangeCommunicator::all_gather(Begun& begun) {
  if (!begun.is_ahead) begin_all_gather_of(begun);
  messages_.finish(begun.payload, [&] { start_next(begun); });
  messages_.finish(begun.offered);
}

void ExchangeCommunicator::start_next(const Begun& current) {
  if (under_way_ <= 1) return;  // none but this one, or a call that is performed
  std::shared_ptr<Begun> next;
  {
    MutexLock lock(mutex_);
    if (!queue_.empty()) next = queue_.front();
  }
  if (!next || next->is_ahead || next->error) return;
  if (next->call.operation != Operation::all_gather ||
      overlap(next->call.output, current.call.output))
    return;
  if (!messages_.can_exchange(next->announced)) return;
  const Traffic before = messages_.traffic();
  next->error = error_of([&] { agree(*next); });  // thrown in its turn
  messages_.resume(current.announced);
  next->is_ahead = !next->error;
  if (next->is_ahead) begin_all_gather_of(*next);
  next->traffic = ahead_ = messages_.traffic() - before;
}

// Each rank has its range; afterwards all have all ranges.
void ExchangeCommunicator::gather_ranges(std::span<std::byte> full, const Ranges& ranges) {
  const auto range_of = [&](int rank) {
    const Range range = ranges[static_cast<std::size_t>(rank)];
    return full.subspan(range.begin, range.size_bytes);
  };
  RankMessages::Batch batch;
  const auto send = [&] {
    for (const int other : others_) messages_.begin_send(batch, other, range_of(rank_));
  };
  const auto receive = [&] {
    for (const int other : others_) messages_.begin_receive(batch, other, range_of(other));
  };
  begin_both(send, receive);
  messages_.finish(batch);
}

void ExchangeCommunicator::broadcast_from(int root, std::span<std::byte> bytes) {
  RankMessages::Batch batch;
  if (rank_ == root) {
    for (const int other : others_) messages_.begin_send(batch, other, bytes);
  } else {
    messages_.begin_receive(batch, root, bytes);
  }
  messages_.finish(batch);
}

void ExchangeCommunicator::scatter_from(const HostCall& call) {
  RankMessages::Batch batch;
  const std::size_t shard = call.output.size();
  if (rank_ == call.root) {
    for (const int other : others_)
      messages_.begin_send(batch, other,
                           call.input.subspan(static_cast<std::size_t>(other) * shard, shard));
    const auto own = call.input.subspan(static_cast<std::size_t>(rank_) * shard, shard);
    std::copy(own.begin(), own.end(), call.output.begin());
  } else {
    messages_.begin_receive(batch, call.root, call.output);
  }
  messages_.finish(batch);
}

void ExchangeCommunicator::gather_to(const HostCall& call) {
  RankMessages::Batch batch;
  const std::size_t shard = call.input.size();
  if (rank_ == call.root) {
    for (const int other : others_)
      messages_.begin_receive(batch, other,
                              call.output.subspan(static_cast<std::size_t>(other) * shard, shard));
    std::copy(
        call.input.begin(), call.input.end(),
        call.output.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank_) * shard));
  } else {
    messages_.begin_send(batch, call.root, call.input);
  }
  messages_.finish(batch);
}

}  // namespace sluice::zero
