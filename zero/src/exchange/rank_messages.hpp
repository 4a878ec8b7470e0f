#pragma once
// RankMessages: the messages of one communicator, and the waits for them. Ranks tell each other
// about each call first, on a lane that is always listened to, so a wait also ends when another
// rank leaves, aborts or does not answer. Not installed.
//
// Confined to the communicator's thread, except abort().

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exchange/call_header.hpp"
#include "exchange/peers.hpp"
#include "exchange/transport.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::zero {

struct Traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
};

class RankMessages {
 public:
  using Batch = std::vector<std::unique_ptr<Message>>;

  // `peers`: null where ranks cannot fall silent, as threads. `message_bytes`: longest message; a
  // longer one goes in pieces.
  RankMessages(std::unique_ptr<Transport> transport, std::shared_ptr<Peers> peers,
               std::size_t message_bytes);
  // Tells the others that this rank has left.
  ~RankMessages();
  RankMessages(const RankMessages&) = delete;
  RankMessages& operator=(const RankMessages&) = delete;

  int rank() const { return transport_->rank(); }
  int world_size() const { return transport_->world_size(); }

  // Sends `own` to `others`, and blocks until theirs have come. Returns all, in the order of ranks.
  // Throws Error when one cannot come. All calls below belong to `own`, for their errors.
  std::vector<CallHeader> exchange(const CallHeader& own, std::span<const int> others);
  // Start payload of the call.
  void begin_send(Batch& batch, int to, std::span<const std::byte> bytes);
  void begin_receive(Batch& batch, int from, std::span<std::byte> bytes);
  // Blocks until the batch is through; the batch is empty then. Throws Error when it cannot be.
  void finish(Batch& batch);
  const Traffic& traffic() const { return traffic_; }  // payload so far

  // Ends the waits of this rank, now and later; `why` is their error. Thread-safe.
  void abort(const std::string& why);
  // Tells the other ranks of abort(), once.
  void announce_abort();

 private:
  struct Peer {
    CallHeader header;                  // the next one, or its last
    std::unique_ptr<Message> incoming;  // of `header`; null after the rank has left or aborted
    std::deque<CallHeader> arrived;     // of calls that this rank has yet to end
    std::string last_call;              // its last one with this rank
    bool has_left = false;
    bool has_aborted = false;
  };
  void listen(Peer& peer, int rank);
  void look_at_headers();
  void check(const std::vector<int>& awaited);
  void check_silence(const std::vector<int>& awaited);
  void wait_until(const std::function<bool()>& is_done, const std::vector<int>& awaited);
  void tell(const CallHeader& header);
  std::string cannot_complete() const;

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<Peers> peers_;  // shared by the communicators of a rank
  const std::size_t message_bytes_;
  std::vector<Peer> others_;  // by rank; its own stays empty
  Traffic traffic_;
  std::string doing_ = "the start";
  std::string broken_;  // not empty: a rank fell silent; no call can be made any more
  bool announced_ = false;

  std::atomic<bool> is_aborted_{false};
  Mutex mutex_;
  std::string why_aborted_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::zero
