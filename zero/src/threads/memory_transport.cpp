#include "threads/memory_transport.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::zero {

namespace {

// Messages of one lane from one rank to another one, counted from 0. Thread-safe.
class Pipe {
 public:
  // Takes the number of a message on one side.
  std::uint64_t next_send() { return sends_++; }        // by the sender
  std::uint64_t next_receive() { return receives_++; }  // by the receiver

  void put(std::uint64_t number, std::span<const std::byte> bytes, bool eager) {
    MutexLock lock(mutex_);
    Posted& posted = posted_[number];
    if (eager) posted.copy.assign(bytes.begin(), bytes.end());
    posted.bytes = eager ? std::span<const std::byte>(posted.copy) : bytes;
  }
  // Whether message `number` was there; then it is in `to`. The sender may ask meanwhile.
  bool take(std::uint64_t number, std::span<std::byte> to) {
    const auto from = lend(number);
    if (!from) return false;
    const bool fits = from->size() == to.size();
    if (fits) std::copy(from->begin(), from->end(), to.begin());
    give_back(number);
    if (fits) return true;
    throw Error("a message of " + std::to_string(from->size()) + " bytes for a receive of " +
                std::to_string(to.size()));
  }
  bool is_there(std::uint64_t number) { return !was_taken(number); }
  // Its bytes, until give_back(); nothing after withdraw().
  std::optional<std::span<const std::byte>> lend(std::uint64_t number) {
    MutexLock lock(mutex_);
    const auto found = posted_.find(number);
    if (found == posted_.end()) return std::nullopt;
    found->second.is_lent = true;
    return found->second.bytes;
  }
  void give_back(std::uint64_t number) {
    MutexLock lock(mutex_);
    posted_.erase(number);
    given_back_.notify_all();
  }
  bool was_taken(std::uint64_t number) {
    MutexLock lock(mutex_);
    return posted_.find(number) == posted_.end();
  }
  // Blocks while the receiver reads the message.
  void withdraw(std::uint64_t number) {
    MutexLock lock(mutex_);
    while (is_lent(number)) given_back_.wait(mutex_);
    posted_.erase(number);
  }

 private:
  struct Posted {
    std::vector<std::byte> copy;
    std::span<const std::byte> bytes;
    bool is_lent = false;
  };
  bool is_lent(std::uint64_t number) SLUICE_REQUIRES(mutex_) {
    const auto found = posted_.find(number);
    return found != posted_.end() && found->second.is_lent;
  }

  std::uint64_t sends_ = 0;
  std::uint64_t receives_ = 0;
  Mutex mutex_;
  CondVar given_back_;
  std::map<std::uint64_t, Posted> posted_ SLUICE_GUARDED_BY(mutex_);
};

class Sent final : public Message {
 public:
  Sent(std::shared_ptr<Pipe> pipe, std::span<const std::byte> bytes, bool eager)
      : pipe_(std::move(pipe)), number_(pipe_->next_send()), eager_(eager) {
    pipe_->put(number_, bytes, eager);
  }
  ~Sent() override {
    if (!eager_) pipe_->withdraw(number_);
  }
  Sent(const Sent&) = delete;
  Sent& operator=(const Sent&) = delete;
  bool done() override { return eager_ || pipe_->was_taken(number_); }

 private:
  const std::shared_ptr<Pipe> pipe_;  // shared with the receiver
  const std::uint64_t number_;
  const bool eager_;
};

class Received final : public Message {
 public:
  Received(std::shared_ptr<Pipe> pipe, std::span<std::byte> bytes)
      : pipe_(std::move(pipe)), number_(pipe_->next_receive()), bytes_(bytes) {}
  bool done() override {
    if (!done_) done_ = pipe_->take(number_, bytes_);
    return done_;
  }

 private:
  const std::shared_ptr<Pipe> pipe_;  // shared with the sender
  const std::uint64_t number_;
  const std::span<std::byte> bytes_;
  bool done_ = false;
};

class Borrowed final : public LentMessage {
 public:
  explicit Borrowed(std::shared_ptr<Pipe> pipe)
      : pipe_(std::move(pipe)), number_(pipe_->next_receive()) {}
  ~Borrowed() override {
    if (bytes_) pipe_->give_back(number_);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  bool done() override { return bytes_ || pipe_->is_there(number_); }
  bool open() override {
    if (!bytes_) bytes_ = pipe_->lend(number_);
    return bytes_.has_value();
  }
  std::span<const std::byte> bytes() const override { return bytes_.value(); }

 private:
  const std::shared_ptr<Pipe> pipe_;  // shared with the sender
  const std::uint64_t number_;
  std::optional<std::span<const std::byte>> bytes_;
};

// The pipes between all pairs.
class Board {
 public:
  explicit Board(int world_size) : world_size_(world_size) {
    const auto ranks = static_cast<std::size_t>(world_size);
    for (std::size_t i = 0; i < ranks * ranks * 2; ++i) pipes_.push_back(std::make_shared<Pipe>());
  }
  int world_size() const { return world_size_; }
  const std::shared_ptr<Pipe>& pipe(int from, int to, Lane lane) const {
    const auto ranks = static_cast<std::size_t>(world_size_);
    const std::size_t pair = static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to);
    return pipes_[2 * pair + (lane == Lane::payload ? 1 : 0)];
  }

 private:
  const int world_size_;
  std::vector<std::shared_ptr<Pipe>> pipes_;  // shared with the messages under way
};

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(std::shared_ptr<const Board> board, int rank, const MemoryOptions& options)
      : board_(std::move(board)), rank_(rank), options_(options) {}

  int rank() const override { return rank_; }
  int world_size() const override { return board_->world_size(); }
  std::unique_ptr<Message> begin_send(int to, Lane lane,
                                      std::span<const std::byte> bytes) override {
    return std::make_unique<Sent>(board_->pipe(rank_, to, lane), bytes,
                                  bytes.size() <= options_.eager_bytes);
  }
  std::unique_ptr<Message> begin_receive(int from, Lane lane, std::span<std::byte> bytes) override {
    return std::make_unique<Received>(board_->pipe(from, rank_, lane), bytes);
  }
  bool lends() const override { return options_.lends; }
  std::unique_ptr<LentMessage> begin_borrow(int from, Lane lane) override {
    return std::make_unique<Borrowed>(board_->pipe(from, rank_, lane));
  }
  void give_up() override {}  // a message that is destroyed leaves nothing behind

 private:
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
