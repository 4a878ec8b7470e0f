#include "threads/memory_transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"

namespace sluice::zero {

namespace {

constexpr std::size_t kCacheLine = 64;

// Holds one message after another. The sender and the receiver share it, and meet at its state.
// Bytes that are lent stay where the sender has them: those of a long message, or an offer.
// Thread-safe.
class alignas(kCacheLine) Slot {
 public:
  // By the sender, of a slot that is free. `number`: from 1.
  void fill(std::uint64_t number, std::span<const std::byte> copied,
            std::span<const std::byte> lent) {
    if (copied.size() > small_copy_.size())
      large_copy_.assign(copied.begin(), copied.end());
    else
      std::copy(copied.begin(), copied.end(), small_copy_.begin());
    copied_bytes_ = static_cast<std::uint32_t>(copied.size());
    lent_ = lent;
    state_.store(State::waiting, std::memory_order_relaxed);
    number_.store(number, std::memory_order_release);
  }
  // The receiver is through with the message; before the first one too.
  bool has_ended() const { return state_.load(std::memory_order_acquire) == State::ended; }
  // By the sender. Blocks while the receiver reads what is lent.
  void withdraw() {
    if (has_ended() || change(State::waiting, State::withdrawn)) return;
    state_.wait(State::lent, std::memory_order_acquire);
  }

  // By the receiver, as all below.
  bool holds(std::uint64_t number) const {
    if (number_.load(std::memory_order_acquire) != number) return false;
    __builtin_prefetch(&lent_);  // read some time after the copy
    return true;
  }
  // Empty: all bytes are lent.
  std::span<const std::byte> copied() const {
    return copied_bytes_ > small_copy_.size() ? std::span<const std::byte>(large_copy_)
                                              : std::span(small_copy_).first(copied_bytes_);
  }
  std::span<const std::byte> lent() const { return lent_; }
  // The receiver reads what is lent until end(); false: it was withdrawn.
  bool lend() { return change(State::waiting, State::lent); }
  void end() {
    state_.store(State::ended, std::memory_order_release);
    state_.notify_all();
  }

 private:
  enum class State { waiting, lent, ended, withdrawn };
  static constexpr std::size_t kHeaderBytes = 176;  // a call's header has no memory of its own

  bool change(State from, State to) {
    return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

  std::atomic<std::uint64_t> number_{0};  // of the message; 0: none yet
  std::atomic<State> state_{State::ended};
  std::uint32_t copied_bytes_ = 0;
  std::array<std::byte, kHeaderBytes> small_copy_;  // begins in the first cache line
  std::span<const std::byte> lent_;
  std::vector<std::byte> large_copy_;
};

// Slots that messages take in turn.
class Ring {
 public:
  explicit Ring(std::size_t count) : slots_(count), is_held_(count) {}
  Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }
  // By the sender: whether its handle of the last message there still looks at the slot. Kept apart
  // from the slot, whose cache lines are at the receiver's core.
  std::atomic<bool>& is_held(std::uint64_t number) {
    return is_held_[number % is_held_.size()].value;
  }
  bool is_free(std::uint64_t number) { return !is_held(number) && slot(number).has_ended(); }

  // Behind this ring: messages from `number` on.
  Ring& grow(std::uint64_t number) {
    next_ = std::make_unique<Ring>(2 * slots_.size());
    end_.store(number, std::memory_order_release);
    return *next_;
  }
  bool has(std::uint64_t number) const { return number < end_.load(std::memory_order_acquire); }
  Ring& next() { return *next_; }

 private:
  struct alignas(kCacheLine) Flag {
    std::atomic<bool> value{false};
  };

  std::vector<Slot> slots_;
  std::vector<Flag> is_held_;
  std::atomic<std::uint64_t> end_{std::numeric_limits<std::uint64_t>::max()};
  std::unique_ptr<Ring> next_;
};

// Messages of one lane from one rank to another one, counted from 1, without a lock. Each end is
// used by one thread at a time.
class Pipe {
 public:
  // Where a message that lends its bytes is, until `is_held` is unset.
  struct Place {
    Slot* slot = nullptr;  // null: the message lends nothing, and is done
    std::atomic<bool>* is_held = nullptr;
  };
  Place send(std::span<const std::byte> copied, std::span<const std::byte> lent) {
    const std::uint64_t number = ++sends_;
    // Slots of messages that are still under way stay as they are.
    if (!last_->is_free(number)) last_ = &last_->grow(number);
    Slot& slot = last_->slot(number);
    std::atomic<bool>& is_held = last_->is_held(number);
    is_held.store(!lent.empty(), std::memory_order_relaxed);
    slot.fill(number, copied, lent);

    return lent.empty() ? Place{} : Place{&slot, &is_held};
  }
  std::uint64_t next_receive() { return ++receives_; }  // by the receiver
  // By the receiver; null: the message is not there yet.
  Slot* find(std::uint64_t number) {
    Ring* ring = &first_;
    while (!ring->has(number)) ring = &ring->next();
    Slot& slot = ring->slot(number);
    return slot.holds(number) ? &slot : nullptr;
  }

 private:
  static constexpr std::size_t kSlots = 4;

  Ring first_{kSlots};
  alignas(kCacheLine) std::uint64_t receives_ = 0;  // the receiver's end
  alignas(kCacheLine) Ring* last_ = &first_;        // the sender's end
  std::uint64_t sends_ = 0;
};

class Sent final : public Message {
 public:
  explicit Sent(const Pipe::Place& place) : place_(place) {}
  ~Sent() override {
    if (place_.slot == nullptr) return;
    place_.slot->withdraw();
    place_.is_held->store(false, std::memory_order_release);
  }
  Sent(const Sent&) = delete;
  Sent& operator=(const Sent&) = delete;
  bool done() override { return place_.slot == nullptr || place_.slot->has_ended(); }

 private:
  const Pipe::Place place_;
};

class MemoryOffer final : public Offer {
 public:
  explicit MemoryOffer(Slot& slot) : slot_(slot) {}
  ~MemoryOffer() override {
    if (is_open_) slot_.end();
  }
  MemoryOffer(const MemoryOffer&) = delete;
  MemoryOffer& operator=(const MemoryOffer&) = delete;
  bool open() override {
    if (!is_open_) is_open_ = slot_.lend();
    return is_open_;
  }
  std::span<const std::byte> bytes() const override {
    SLUICE_CHECK(is_open_, "an offer that is not open has no bytes");
    return slot_.lent();
  }

 private:
  Slot& slot_;
  bool is_open_ = false;
};

class Received final : public Message {
 public:
  Received(Pipe& pipe, Lane lane, std::span<std::byte> bytes)
      : pipe_(pipe), lane_(lane), number_(pipe.next_receive()), bytes_(bytes) {}
  bool done() override {
    if (done_) return true;
    if (slot_ == nullptr) slot_ = pipe_.find(number_);
    if (slot_ == nullptr) return false;
    if (const std::span<const std::byte> copied = slot_->copied(); !copied.empty()) {
      has_offer_ = !slot_->lent().empty();
      take(copied);
      if (!has_offer_) slot_->end();
      return true;
    }
    if (!slot_->lend()) return false;
    const std::exception_ptr error = error_of([&] { take(slot_->lent()); });
    slot_->end();
    if (error) std::rethrow_exception(error);
    return true;
  }
  std::unique_ptr<Offer> take_offer() override {
    return std::exchange(has_offer_, false) ? std::make_unique<MemoryOffer>(*slot_) : nullptr;
  }

 private:
  void take(std::span<const std::byte> from) {
    const bool fits =
        lane_ == Lane::headers ? from.size() <= bytes_.size() : from.size() == bytes_.size();
    if (!fits)
      throw Error("a message of " + std::to_string(from.size()) + " bytes for a receive of " +
                  std::to_string(bytes_.size()));
    std::copy(from.begin(), from.end(), bytes_.begin());
    done_ = true;
  }

  Pipe& pipe_;
  const Lane lane_;
  const std::uint64_t number_;
  const std::span<std::byte> bytes_;
  Slot* slot_ = nullptr;  // once the message is there
  bool done_ = false;
  bool has_offer_ = false;
};

// The pipes between all pairs.
class Board {
 public:
  explicit Board(int world_size) : world_size_(world_size) {
    const auto ranks = static_cast<std::size_t>(world_size);
    for (std::size_t i = 0; i < ranks * ranks * 2; ++i) pipes_.push_back(std::make_unique<Pipe>());
  }
  int world_size() const { return world_size_; }
  Pipe& pipe(int from, int to, Lane lane) const {
    const auto ranks = static_cast<std::size_t>(world_size_);
    const std::size_t pair = static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to);
    return *pipes_[2 * pair + (lane == Lane::payload ? 1 : 0)];
  }

 private:
  const int world_size_;
  std::vector<std::unique_ptr<Pipe>> pipes_;
};

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(std::shared_ptr<const Board> board, int rank, const MemoryOptions& options)
      : board_(std::move(board)), rank_(rank), options_(options) {}

  int rank() const override { return rank_; }
  int world_size() const override { return board_->world_size(); }
  std::unique_ptr<Message> begin_send(int to, Lane lane,
                                      std::span<const std::byte> bytes) override {
    return bytes.size() <= options_.eager_bytes ? send(to, lane, bytes, {})
                                                : send(to, lane, {}, bytes);
  }
  std::unique_ptr<Message> begin_receive(int from, Lane lane, std::span<std::byte> bytes) override {
    return std::make_unique<Received>(board_->pipe(from, rank_, lane), lane, bytes);
  }
  bool lends() const override { return options_.lends; }
  std::unique_ptr<Message> begin_offer(int to, std::span<const std::byte> bytes,
                                       std::span<const std::byte> offered) override {
    return send(to, Lane::headers, bytes, offered);
  }
  void give_up() override {}  // a message that is destroyed leaves nothing behind

 private:
  std::unique_ptr<Message> send(int to, Lane lane, std::span<const std::byte> copied,
                                std::span<const std::byte> lent) const {
    return std::make_unique<Sent>(board_->pipe(rank_, to, lane).send(copied, lent));
  }

  const std::shared_ptr<const Board> board_;  // shared by the ranks
  const int rank_;
  const MemoryOptions options_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_memory_transports(int world_size,
                                                               const MemoryOptions& options) {
  SLUICE_CHECK(world_size >= 1, "world size of " + std::to_string(world_size));
  const auto board = std::make_shared<const Board>(world_size);
  std::vector<std::unique_ptr<Transport>> transports;
  transports.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank)
    transports.push_back(std::make_unique<MemoryTransport>(board, rank, options));
  return transports;
}

}  // namespace sluice::zero
