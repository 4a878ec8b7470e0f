#pragma once
// Transport: messages between pairs of ranks, over MPI or the memory of one process. A message of a
// lane arrives in the order in which its sender began it. Not installed.
//
// Messages and offers are destroyed before their transport.
//
// One thread at a time: the one that makes the call of its communicator. Another one may send
// headers meanwhile, one after the other.

#include <cstddef>
#include <memory>
#include <span>

namespace sluice::zero {

// Bytes that came with a message, to be read where its sender has them.
class Offer {
 public:
  virtual ~Offer() = default;  // the sender's memory is its own again
  // From here until this is destroyed, the sender leaves the bytes as they are, and waits. False:
  // the sender has taken the offer back. Does not block; open no offer while others are awaited.
  virtual bool open() = 0;
  virtual std::span<const std::byte> bytes() const = 0;  // of an open offer
};

// A message under way. It uses its memory until it is done or destroyed.
class Message {
 public:
  // A message that is not done is given up: it may or may not arrive. Blocks while its offer is
  // open.
  virtual ~Message() = default;
  // Whether the memory is sent or received; an offer, whether it has been read. Does not block.
  // Throws Error when the transport fails.
  virtual bool done() = 0;
  // Once, of a message that was received. Null: nothing was offered.
  virtual std::unique_ptr<Offer> take_offer() { return nullptr; }
};

// Ranks tell each other about their calls on the first lane, so payload is only sent when a receive
// of its size is certain.
enum class Lane { headers, payload };

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Start a message; do not block. Both ranks give it the same size. Throw Error when the transport
  // fails.
  virtual std::unique_ptr<Message> begin_send(int to, Lane lane,
                                              std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Message> begin_receive(int from, Lane lane,
                                                 std::span<std::byte> bytes) = 0;
  // Whether messages can bring offers: ranks share memory. Without, begin_offer returns null.
  virtual bool lends() const { return false; }
  // As begin_send of a header; `bytes` are free at once, and `offered` is used until the message is
  // done. A header may be shorter than its receive, whose other bytes stay as they are: each cache
  // line of it that the other core fetches takes a small call longer.
  virtual std::unique_ptr<Message> begin_offer(int /*to*/, std::span<const std::byte> /*bytes*/,
                                               std::span<const std::byte> /*offered*/) {
    return nullptr;
  }
  // A rank does not answer. No later message can be sent or received, so memory of messages under
  // way is not touched either, and the ranks do not end in order.
  virtual void give_up() = 0;
};

}  // namespace sluice::zero
