#pragma once
// RankMessages: the messages of one communicator, and the waits for them. Ranks tell each other
// about each call first, on a lane that is always listened to, so a wait also ends when another
// rank leaves, aborts or does not answer. Not installed.
//
// One thread at a time makes calls, except abort(); another one may announce later calls meanwhile.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exchange/call_header.hpp"
#include "exchange/peers.hpp"
#include "exchange/transport.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/zero/abort_reason.hpp"

namespace sluice::zero {

struct Traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;

  Traffic operator+(const Traffic& other) const {
    return {sent_bytes + other.sent_bytes, received_bytes + other.received_bytes};
  }
  Traffic operator-(const Traffic& other) const {
    return {sent_bytes - other.sent_bytes, received_bytes - other.received_bytes};
  }
};

struct MessageOptions {
  // Longest message; a longer one goes in pieces. MPI counts bytes of a message in an int.
  std::size_t size_bytes = std::size_t{256} << 20U;
  bool between_hosts = false;  // they arrive later, and looking for them costs more
};

class RankMessages {
 public:
  // Messages of a call. Memory of a receive is copied when its message is asked about, and the
  // other rank's sends wait for that, so receives are asked about first.
  class Batch {
   public:
    void add_send(std::unique_ptr<Message> message) { sends_.add(std::move(message)); }
    void add_receive(std::unique_ptr<Message> message) { receives_.add(std::move(message)); }
    // Whether all are done. Asks about the first message only while it is under way: each question
    // lets MPI make progress with all of them, and costs a system call over TCP.
    bool remove_done() { return receives_.remove_done() && sends_.remove_done(); }

   private:
    class Messages {
     public:
      void add(std::unique_ptr<Message> message) { messages_.push_back(std::move(message)); }
      bool remove_done();

     private:
      std::vector<std::unique_ptr<Message>> messages_;
      std::size_t done_ = 0;  // of them, from the front
    };
    Messages receives_;
    Messages sends_;
  };
  // A call that the other ranks are told about. It stays in place: the messages send its header.
  struct Announced {
    CallHeader header;
    std::span<const int> others;
    Batch sends;
    Batch offers;  // of announce_with_offers()
  };
  // Bytes that another rank finds with the header of a call; empty: none.
  using OfferTo = std::function<std::span<const std::byte>(int other)>;

  // `peers`: null where ranks cannot fall silent, as threads.
  RankMessages(std::unique_ptr<Transport> transport, std::shared_ptr<Peers> peers,
               const MessageOptions& options);
  // Tells the others that this rank has left.
  ~RankMessages();
  RankMessages(const RankMessages&) = delete;
  RankMessages& operator=(const RankMessages&) = delete;

  int rank() const { return transport_->rank(); }
  int world_size() const { return transport_->world_size(); }

  // Sends the header of a call to its other ranks; does not block. Calls are made in the order in
  // which they are announced. Announced before the calls ahead of it have ended, a call begins
  // without waiting for headers.
  void announce(Announced& own);
  // As announce(), where the transport lends. The others read what is offered in place: a small
  // call waits once less than with payload of its own. The bytes are used until `own.offers` is
  // through or destroyed.
  void announce_with_offers(Announced& own, const OfferTo& offer_to);
  // Blocks until the headers of the call's other ranks have come. Returns all, in the order of
  // ranks, until the next exchange. Throws Error when one cannot come. All calls below belong to
  // it, for their errors.
  std::span<const CallHeader* const> exchange(Announced& own);
  // Whether exchange() would not block.
  bool can_exchange(Announced& own);
  // The calls below belong to `own` again.
  void resume(const Announced& own);
  // Start payload of the call.
  void begin_send(Batch& batch, int to, std::span<const std::byte> bytes);
  void begin_receive(Batch& batch, int from, std::span<std::byte> bytes);
  // Whether announce_with_offers() is possible.
  bool lends() const { return transport_->lends(); }
  // After exchange(): what `others` offer, in their order, open. `size_bytes`: of each.
  using Offers = std::vector<std::unique_ptr<Offer>>;
  Offers open_offers(std::span<const int> others, std::size_t size_bytes);
  // Blocks until the batch is through; the batch is empty then. Throws Error when it cannot be.
  // `meanwhile` is called with every look, and once at least.
  void finish(Batch& batch, const std::function<void()>& meanwhile = {});
  const Traffic& traffic() const { return traffic_; }  // payload so far

  // Ends the waits of this rank, now and later; `why` is their error. Thread-safe.
  void abort(const AbortReason& why);
  // Tells the other ranks of abort(), once.
  void announce_abort();
  // Both: a call of this rank has failed, and the others may wait for its messages.
  void abort_all(const AbortReason& why);

 private:
  // A header of another rank, from its receive to the end of its call. It stays in place: copies of
  // headers take a small call longer.
  struct Heard {
    CallHeader header;
    std::unique_ptr<Message> incoming;
    std::unique_ptr<Offer> offer;  // null: none, or read
  };
  struct Peer {
    std::list<Heard> next;     // awaited; the front may be the rank's last word
    std::list<Heard> arrived;  // of calls that this rank has yet to make
    std::list<Heard> last;     // of its last call with this rank; empty: none yet
    std::list<Heard> spare;
    bool has_left = false;
    bool has_aborted = false;
  };
  void listen(Peer& peer, int rank);
  bool look_at_headers();  // takes one of each rank at most; whether any has come
  bool all_here(Announced& own);
  void check(std::span<const int> awaited);
  void check_silence(std::span<const int> awaited);
  void wait_until(const std::function<bool()>& is_done, std::span<const int> awaited);
  [[noreturn]] void throw_aborted();
  void tell(const CallHeader& header);
  std::unique_ptr<Message> send_header(int to, const CallHeader& header);
  std::string cannot_complete() const;

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<Peers> peers_;  // shared by the communicators of a rank
  const MessageOptions options_;
  std::vector<Peer> others_;  // by rank; its own stays empty
  std::vector<const CallHeader*> exchanged_;
  Traffic traffic_;
  const CallHeader* doing_ = nullptr;  // of the call that is made now; null: the start
  std::string broken_;  // not empty: a rank fell silent; no call can be made any more
  bool abort_announced_ = false;
  Mutex sending_headers_;  // they leave in order, from two threads

  std::atomic<bool> is_aborted_{false};
  Mutex mutex_;
  std::optional<AbortReason> why_aborted_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::zero
