#include "exchange/exchange_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "exchange/call_header.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/time/elapsed.hpp"

namespace sluice::zero {

namespace {

std::vector<int> all_but(int rank, int world_size) {
  std::vector<int> others;
  for (int other = 0; other < world_size; ++other)
    if (other != rank) others.push_back(other);
  return others;
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

void ExchangeCommunicator::abort(const AbortReason& why) {
  messages_.abort(why);
  Ticket announced = worker_.begin([this] {
    MutexLock lock(running_);
    messages_.announce_abort();
  });
  MutexLock lock(mutex_);
  announced_.push_back(std::move(announced));
}

// While the calls before it run, its header is on its way. Where ranks share memory, it leaves with
// what the call offers, in its turn: the calls before it may write these bytes.
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
    if (!messages_.lends()) messages_.announce(begun.announced);
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
  } catch (const std::exception&) {
    messages_.abort_all(AbortReason(std::current_exception()));
    begun.payload = {};  // the caller's memory is its own again
    begun.announced.offers = {};
    throw;
  }
  const Traffic own = messages_.traffic() - before - ahead_ + begun.traffic;
  counters_.add({call.operation, std::max(call.input.size(), call.output.size()), 1, own.sent_bytes,
                 own.received_bytes, seconds_since(begin)},
                call.label);
}

std::span<const std::byte> ExchangeCommunicator::offered_to(const HostCall& call, int other) const {
  switch (call.operation) {
    case Operation::all_gather:
      return shard_of(call.output, rank_);
    case Operation::reduce_scatter:
    case Operation::all_reduce:
    case Operation::reduce:
      return part_summed_by(other, call);
    default:
      return {};
  }
}

// All ranks that take part make this call; else all of them throw.
void ExchangeCommunicator::agree(Begun& begun) {
  try {
    if (messages_.lends())
      messages_.announce_with_offers(begun.announced,
                                     [&](int other) { return offered_to(begun.call, other); });
    const std::span<const CallHeader* const> calls = messages_.exchange(begun.announced);
    const CallHeader& header = begun.announced.header;
    counters_.add_headers(begun.announced.others.size() *
                          (messages_.lends() ? header.used_bytes().size() : sizeof(header)));
    const std::string mistake = find_disagreement(calls, world_size_);
    if (mistake.empty()) return;
    const bool mixed = std::ranges::any_of(
        calls, [](const CallHeader* each) { return is_pairwise(each->call().operation); });
    // Ranks outside the pair wait for a call that does not come.
    if (mixed) messages_.abort_all({mistake, FailureKind::usage});
    throw InvalidArgument("rank " + std::to_string(rank_) + ": " + mistake);
  } catch (...) {
    begun.announced.offers = {};
    throw;
  }
}

void ExchangeCommunicator::move(Begun& begun) {
  const HostCall& call = begun.call;
  RankMessages::Batch batch;
  switch (call.operation) {
    case Operation::all_gather:
      return all_gather(begun);
    case Operation::reduce_scatter:
    case Operation::reduce:
      return sum(begun);
    case Operation::all_reduce:
      sum(begun);
      return gather_parts(call);
    case Operation::broadcast:
      return broadcast_from(call.root, call.output);
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

// Ranges of an all-reduce differ by one element at most.
ExchangeCommunicator::Range ExchangeCommunicator::summed_by(int rank, const HostCall& call) const {
  const std::size_t size = call.output.size();
  const auto ranks = static_cast<std::size_t>(world_size_);
  const auto index = static_cast<std::size_t>(rank);
  if (call.operation == Operation::reduce) return rank == call.root ? Range{0, size} : Range{};
  if (call.operation == Operation::reduce_scatter) return {index * (size / ranks), size / ranks};
  const std::size_t element = size_of(call.element);
  const std::size_t least = size / element / ranks;
  const std::size_t longer = size / element % ranks;  // so many ranks have one element more
  return {(index * least + std::min(index, longer)) * element,
          (least + (index < longer ? 1 : 0)) * element};
}

std::span<std::byte> ExchangeCommunicator::part_summed_by(int rank, const HostCall& call) const {
  const Range range = summed_by(rank, call);
  return call.output.subspan(range.begin, range.size_bytes);
}

void ExchangeCommunicator::begin_all_gather_of(Begun& begun) {
  const std::span<std::byte> full = begun.call.output;
  const auto send = [&] {
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
  if (messages_.lends()) {
    gather_offered(begun.call.output);
    return messages_.finish(begun.announced.offers);
  }
  if (!begun.is_ahead) begin_all_gather_of(begun);
  messages_.finish(begun.payload, [&] { start_next(begun); });
}

void ExchangeCommunicator::gather_offered(std::span<std::byte> full) {
  if (full.empty()) return;
  RankMessages::Offers offers = messages_.open_offers(others_, shard_of(full, rank_).size());
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const std::span<const std::byte> from = offers[i]->bytes();
    std::copy(from.begin(), from.end(), shard_of(full, others_[i]).begin());
    offers[i].reset();
  }
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

// Each rank has its part; afterwards all have all parts.
void ExchangeCommunicator::gather_parts(const HostCall& call) {
  RankMessages::Batch batch;
  const auto send = [&] {
    for (const int other : others_) messages_.begin_send(batch, other, part_summed_by(rank_, call));
  };
  const auto receive = [&] {
    for (const int other : others_)
      messages_.begin_receive(batch, other, part_summed_by(other, call));
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
