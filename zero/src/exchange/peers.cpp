#include "exchange/peers.hpp"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "sluice/base/error_of.hpp"
#include "sluice/base/host_name.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::zero {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::duration<double> kLongestInterval{1};
// Beats within the silence limit: a single late one means nothing.
constexpr int kBeatsInLimit = 20;

template <std::size_t Size>
void set_text(std::array<char, Size>& to, std::string_view text) {
  to.fill('\0');
  const std::string_view part = text.substr(0, Size - 1);
  std::copy(part.begin(), part.end(), to.begin());
}

std::string seconds_text(Clock::duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

std::chrono::duration<double> interval_of(std::chrono::duration<double> limit) {
  return limit.count() > 0 ? std::min(kLongestInterval, limit / kBeatsInLimit) : kLongestInterval;
}

}  // namespace

Peers::Peers(std::unique_ptr<Transport> transport, std::chrono::duration<double> silence_limit)
    : transport_(std::move(transport)),
      rank_(transport_->rank()),
      world_size_(transport_->world_size()),
      silence_limit_(silence_limit),
      interval_(interval_of(silence_limit)),
      peers_(static_cast<std::size_t>(world_size_)),
      looked_at_(Clock::now()) {
  {
    MutexLock lock(mutex_);
    set_text(own_.host, host_name());
    set_text(own_.doing, "at the start");
    own_.process = static_cast<std::int32_t>(::getpid());
    for (Peer& peer : peers_) peer.seen_at = looked_at_;
  }
  thread_ = start_thread("sluice-peers", [this] { run(); });
}

Peers::~Peers() {
  ending_ = true;
  thread_.join();
}

void Peers::set_doing(const std::string& what) {
  MutexLock lock(mutex_);
  set_text(own_.doing, what);
}

std::string Peers::trouble() const {
  MutexLock lock(mutex_);
  if (!has_silent()) return "";
  std::string silent;
  std::string rest;
  for (int other = 0; other < world_size_; ++other) {
    const bool is_the_one = other != rank_ && is_silent(peers_[static_cast<std::size_t>(other)]);
    (is_the_one ? silent : rest) += "; " + line(other);
  }
  return silent.substr(2) + rest;
}

void Peers::run() {
  constexpr std::chrono::milliseconds kLook{10};
  const std::exception_ptr error = error_of([&] {
    while (!stopped_) {
      {
        MutexLock lock(mutex_);
        look();
        if (ending_) own_.has_ended = 1;
        if (ending_ || Clock::now() - beat_at_ >= interval_) beat();
        if (ending_ && ((all_ended() && all_told()) || has_silent())) break;
      }
      std::this_thread::sleep_for(kLook);
    }
    MutexLock lock(mutex_);
    if (!all_ended()) transport_->give_up();
    for (Peer& peer : peers_) peer.receiving.reset();
  });
  if (error && !stopped_)
    log(LogLevel::warn, "the other ranks are no longer watched: their beats have failed");
}

// To every rank that has taken the beat before. The last beat says that this rank has ended.
void Peers::beat() {
  beat_at_ = Clock::now();
  ++own_.count;
  for (int other = 0; other < world_size_; ++other) {
    if (other == rank_) continue;
    Peer& peer = peers_[static_cast<std::size_t>(other)];
    if (peer.told_end || (peer.sending && !peer.sending->done())) continue;
    peer.outgoing = own_;
    peer.told_end = own_.has_ended != 0;
    peer.sending =
        transport_->begin_send(other, Lane::payload, std::as_bytes(std::span(&peer.outgoing, 1)));
  }
}

void Peers::look() {
  const auto now = Clock::now();
  // This process stood still itself: what it did not see in that time says nothing.
  const bool was_away = now - looked_at_ > 4 * interval_;
  looked_at_ = now;
  for (int other = 0; other < world_size_; ++other) {
    if (other == rank_) continue;
    Peer& peer = peers_[static_cast<std::size_t>(other)];
    if (was_away) peer.seen_at = now;
    while (peer.last.has_ended == 0) {
      if (!peer.receiving) {
        peer.receiving = transport_->begin_receive(
            other, Lane::payload, std::as_writable_bytes(std::span(&peer.incoming, 1)));
      }
      if (!peer.receiving->done()) break;
      peer.receiving.reset();
      peer.last = peer.incoming;
      peer.seen_at = now;
    }
  }
}

bool Peers::all_ended() const {
  for (int other = 0; other < world_size_; ++other)
    if (other != rank_ && peers_[static_cast<std::size_t>(other)].last.has_ended == 0) return false;
  return true;
}

bool Peers::all_told() {
  for (int other = 0; other < world_size_; ++other) {
    const Peer& peer = peers_[static_cast<std::size_t>(other)];
    if (other != rank_ && (!peer.told_end || !peer.sending->done())) return false;
  }
  return true;
}

bool Peers::is_silent(const Peer& peer) const {
  return silence_limit_.count() > 0 && peer.last.has_ended == 0 &&
         Clock::now() - peer.seen_at > silence_limit_;
}

bool Peers::has_silent() const {
  for (int other = 0; other < world_size_; ++other)
    if (other != rank_ && is_silent(peers_[static_cast<std::size_t>(other)])) return true;
  return false;
}

std::string Peers::line(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const Beat& beat = rank == rank_ ? own_ : peer.last;
  std::string text = "rank " + std::to_string(rank);
  if (beat.count == 0) return text + " has not answered since the start";
  text +=
      std::string(" (host ") + beat.host.data() + ", process " + std::to_string(beat.process) + ")";
  if (rank == rank_) return text + " waits " + beat.doing.data();
  if (beat.has_ended != 0) return text + " has ended, " + beat.doing.data();
  if (!is_silent(peer)) return text + " answers, and is " + beat.doing.data();
  return text + " has not answered for " + seconds_text(Clock::now() - peer.seen_at) + "; it was " +
         beat.doing.data();
}

}  // namespace sluice::zero
