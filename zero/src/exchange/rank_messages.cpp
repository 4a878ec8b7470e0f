#include "exchange/rank_messages.hpp"

#include <algorithm>
#include <utility>

#include "call/pause.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"

namespace sluice::zero {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSilenceLook{50};
// Ranks that share memory often answer sooner than a yield returns: so many looks, about 20 µs.
constexpr int kQuickLooks = 1024;
// A quick wait that needs no header looks for one so rarely: each look takes the cache line of the
// next header from the rank that is about to write it.
constexpr int kRareLook = 64;
// Headers of a rank that are awaited. With one, its place is prepared when the one before arrives,
// while a call waits for it.
constexpr std::size_t kAwaited = 2;
// A rank that leaves waits at most this long until the others have its last word.
constexpr std::chrono::seconds kLastWords{1};

std::span<std::byte> bytes_of(CallHeader& header) {
  return std::as_writable_bytes(std::span(&header, 1));
}
std::span<const std::byte> bytes_of(const CallHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

std::string text_of_header(const CallHeader& header) {
  return text_of(header.call(), header.input_bytes, header.output_bytes);
}

std::string see_error_of(std::size_t rank) {
  return " (see the error of rank " + std::to_string(rank) + ")";
}

}  // namespace

bool RankMessages::Batch::Messages::remove_done() {
  for (; done_ < messages_.size() && messages_[done_]->done(); ++done_) messages_[done_].reset();
  if (done_ < messages_.size()) return false;
  messages_.clear();
  done_ = 0;
  return true;
}

RankMessages::RankMessages(std::unique_ptr<Transport> transport, std::shared_ptr<Peers> peers,
                           const MessageOptions& options)
    : transport_(std::move(transport)),
      peers_(std::move(peers)),
      options_(options),
      others_(static_cast<std::size_t>(transport_->world_size())) {
  for (int other = 0; other < world_size(); ++other)
    for (std::size_t i = 0; other != rank() && i < kAwaited; ++i)
      listen(others_[static_cast<std::size_t>(other)], other);
}

RankMessages::~RankMessages() {
  if (!broken_.empty() || abort_announced_) return;
  const std::exception_ptr error = error_of(
      [&] { tell(last_header(CallHeader::Kind::left, rank(), "it makes no more calls")); });
  if (error) log(LogLevel::debug, "the last message of a rank was not sent");
}

void RankMessages::listen(Peer& peer, int other) {
  if (peer.spare.empty()) peer.spare.emplace_back();
  peer.next.splice(peer.next.end(), peer.spare, peer.spare.begin());
  Heard& next = peer.next.back();
  next.incoming = transport_->begin_receive(other, Lane::headers, bytes_of(next.header));
}

bool RankMessages::look_at_headers() {
  bool any = false;
  for (Peer& peer : others_) {
    if (peer.next.empty() || peer.has_left || peer.has_aborted) continue;  // or it is this rank
    if (peer.next.size() < kAwaited) listen(peer, static_cast<int>(&peer - others_.data()));
    Heard& heard = peer.next.front();
    if (!heard.incoming->done()) continue;
    any = true;
    heard.offer = heard.incoming->take_offer();
    peer.has_left = heard.header.kind == CallHeader::Kind::left;
    peer.has_aborted = heard.header.kind == CallHeader::Kind::aborted;
    if (!peer.has_left && !peer.has_aborted)
      peer.arrived.splice(peer.arrived.end(), peer.next, peer.next.begin());
  }
  return any;
}

std::string RankMessages::cannot_complete() const {
  return "rank " + std::to_string(rank()) + " cannot complete " +
         (doing_ ? text_of_header(*doing_) : "the start");
}

void RankMessages::check_silence(std::span<const int> awaited) {
  if (!peers_) return;
  const std::string trouble = peers_->trouble();
  if (trouble.empty()) return;
  broken_ = trouble;
  for (const int other : awaited) {
    const Peer& peer = others_[static_cast<std::size_t>(other)];
    if (peer.arrived.empty() && !peer.last.empty())
      broken_ += "; the last call of rank " + std::to_string(other) + " here was " +
                 text_of_header(peer.last.front().header);
  }
  abort_all(broken_);
  peers_->stop();
  transport_->give_up();
  throw Error(cannot_complete() + ": " + broken_);
}

// Throws when the call cannot be completed. `awaited`: ranks whose header the call needs.
void RankMessages::check(std::span<const int> awaited) {
  const auto of_all = [&] { return " of " + std::to_string(world_size()); };
  if (is_aborted_) throw_aborted();
  for (std::size_t other = 0; other < others_.size(); ++other) {
    if (!others_[other].has_aborted) continue;
    const CallHeader& last = others_[other].next.front().header;
    throw RankFailure(static_cast<FailureKind>(last.failure),
                      "rank " + std::to_string(last.rank) + of_all() + " has aborted (" +
                          std::string(last.text_view()) + "); " + cannot_complete() +
                          see_error_of(static_cast<std::size_t>(last.rank)));
  }
  for (const int other : awaited) {
    const Peer& peer = others_[static_cast<std::size_t>(other)];
    if (!peer.has_left || !peer.arrived.empty()) continue;
    throw Error("rank " + std::to_string(other) + of_all() + " has left; " + cannot_complete() +
                see_error_of(static_cast<std::size_t>(other)));
  }
}

void RankMessages::throw_aborted() {
  MutexLock lock(mutex_);
  why_aborted_->raise(cannot_complete() + ": aborted: ");
}

void RankMessages::wait_until(const std::function<bool()>& is_done, std::span<const int> awaited) {
  const auto look = [&] {
    if (is_done()) return true;
    look_at_headers();
    check(awaited);
    return false;
  };
  for (int quick = lends() ? kQuickLooks : 0; quick > 0; --quick) {
    const bool with_headers = !awaited.empty() || quick % kRareLook == 0;
    if (with_headers ? look() : is_done()) return;
    pause_briefly();
  }
  const auto begin = Clock::now();
  auto next_look = begin + kSilenceLook;
  while (!look()) {
    const auto now = Clock::now();
    if (now >= next_look) {
      check_silence(awaited);
      next_look = now + kSilenceLook;
    }
    options_.between_hosts ? pause_for_network(now - begin) : pause_between_looks(now - begin);
  }
}

std::unique_ptr<Message> RankMessages::send_header(int to, const CallHeader& header) {
  MutexLock lock(sending_headers_);
  return transport_->begin_send(to, Lane::headers, bytes_of(header));
}

void RankMessages::announce(Announced& own) {
  // After an abort the others no longer listen.
  if (is_aborted_) return;
  for (const int other : own.others) own.sends.add_send(send_header(other, own.header));
}

void RankMessages::announce_with_offers(Announced& own, const OfferTo& offer_to) {
  if (is_aborted_) return;
  for (const int other : own.others) {
    const std::span<const std::byte> offered = offer_to(other);
    traffic_.sent_bytes += offered.size();
    own.offers.add_send(transport_->begin_offer(other, own.header.used_bytes(), offered));
  }
}

// Looks itself, right before the call ahead may end: a header seen at the next look is too late.
// With the looks of the waits alone a step of two hosts took 0.41 s in place of 0.38.
bool RankMessages::can_exchange(Announced& own) {
  look_at_headers();
  return all_here(own);
}

// `own` is told, and its other ranks have told of theirs.
bool RankMessages::all_here(Announced& own) {
  const bool sent = own.sends.remove_done();
  return sent && std::ranges::all_of(own.others, [&](int other) {
           return !others_[static_cast<std::size_t>(other)].arrived.empty();
         });
}

void RankMessages::resume(const Announced& own) {
  doing_ = &own.header;
  if (peers_) peers_->set_doing("in " + text_of_header(own.header));
}

std::span<const CallHeader* const> RankMessages::exchange(Announced& own) {
  resume(own);
  if (!broken_.empty()) throw Error(cannot_complete() + ": " + broken_);
  while (look_at_headers()) continue;  // an abort behind the header of this call counts
  check(own.others);
  wait_until([&] { return all_here(own); }, own.others);
  exchanged_.clear();
  for (int each = 0; each < world_size(); ++each) {
    if (each == rank()) exchanged_.push_back(&own.header);
    if (std::ranges::find(own.others, each) == own.others.end()) continue;
    Peer& peer = others_[static_cast<std::size_t>(each)];
    peer.spare.splice(peer.spare.end(), peer.last);
    peer.last.splice(peer.last.end(), peer.arrived, peer.arrived.begin());
    exchanged_.push_back(&peer.last.front().header);
  }
  return exchanged_;
}

void RankMessages::begin_send(Batch& batch, int to, std::span<const std::byte> bytes) {
  traffic_.sent_bytes += bytes.size();
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), options_.size_bytes)))
    batch.add_send(transport_->begin_send(
        to, Lane::payload, bytes.first(std::min(bytes.size(), options_.size_bytes))));
}

void RankMessages::begin_receive(Batch& batch, int from, std::span<std::byte> bytes) {
  traffic_.received_bytes += bytes.size();
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), options_.size_bytes)))
    batch.add_receive(transport_->begin_receive(
        from, Lane::payload, bytes.first(std::min(bytes.size(), options_.size_bytes))));
}

RankMessages::Offers RankMessages::open_offers(std::span<const int> others,
                                               std::size_t size_bytes) {
  Offers offers;
  offers.reserve(others.size());
  for (const int other : others) {
    offers.push_back(std::move(others_[static_cast<std::size_t>(other)].last.front().offer));
    SLUICE_CHECK(offers.back() != nullptr,
                 "rank " + std::to_string(other) + " offers nothing for this call");
  }
  if (!std::ranges::all_of(offers, [](const auto& each) { return each->open(); })) {
    offers.clear();
    wait_until([] { return false; }, {});  // throws why: a rank that takes an offer back aborts
  }
  traffic_.received_bytes += size_bytes * others.size();
  return offers;
}

void RankMessages::finish(Batch& batch, const std::function<void()>& meanwhile) {
  const auto look = [&] {
    if (meanwhile) meanwhile();
    return batch.remove_done();
  };
  wait_until(look, {});
}

void RankMessages::abort(const AbortReason& why) {
  MutexLock lock(mutex_);
  if (!why_aborted_) why_aborted_ = why;
  is_aborted_ = true;
}

void RankMessages::abort_all(const AbortReason& why) {
  abort(why);
  announce_abort();
}

void RankMessages::announce_abort() {
  if (std::exchange(abort_announced_, true)) return;
  std::optional<AbortReason> why;
  {
    MutexLock lock(mutex_);
    why = why_aborted_;
  }
  // An abort that was heard is passed on as it came, so that all ranks name the one that began.
  const auto heard = std::ranges::find_if(others_, &Peer::has_aborted);
  if (why->by_another && heard != others_.end()) return tell(heard->next.front().header);
  CallHeader header = last_header(CallHeader::Kind::aborted, rank(), why->text);
  header.failure = static_cast<std::uint8_t>(why->kind);
  tell(header);
}

// The last header to every rank that still listens.
void RankMessages::tell(const CallHeader& header) {
  Batch sends;
  for (int other = 0; other < world_size(); ++other) {
    const Peer& peer = others_[static_cast<std::size_t>(other)];
    if (other == rank() || peer.has_left || peer.has_aborted) continue;
    sends.add_send(send_header(other, header));
  }
  const auto begin = Clock::now();
  while (!sends.remove_done() && Clock::now() - begin < kLastWords)
    pause_between_looks(Clock::now() - begin);
}

}  // namespace sluice::zero
