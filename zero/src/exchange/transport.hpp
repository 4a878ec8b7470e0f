#pragma once
// Transport: messages between pairs of ranks, over MPI or the memory of one process. A message of a
// lane arrives in the order in which its sender began it. Not installed.
//
// One thread at a time: the one that makes the call of its communicator. Another one may send
// headers meanwhile, one after the other.

#include <cstddef>
#include <memory>
#include <span>

namespace sluice::zero {

// A message under way. It uses its memory until it is done or destroyed.
class Message {
 public:
  // A message that is not done is given up: it may or may not arrive. Blocks while it is lent.
  virtual ~Message() = default;
  // Whether the memory is sent or received. Does not block. Throws Error when the transport fails.
  virtual bool done() = 0;
};

// A message that is read where its sender has it. done(): it can be opened.
class LentMessage : public Message {
 public:
  // From here until this is destroyed, the sender leaves the bytes as they are, and waits. False:
  // the sender has given the message up. Does not block; open no message while others are awaited.
  virtual bool open() = 0;
  virtual std::span<const std::byte> bytes() const = 0;  // of an open message
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
  // In place of begin_receive, where ranks share memory: lends(). Else null.
  virtual bool lends() const { return false; }
  virtual std::unique_ptr<LentMessage> begin_borrow(int /*from*/, Lane /*lane*/) { return nullptr; }
  // A rank does not answer. No later message can be sent or received, so memory of messages under
  // way is not touched either, and the ranks do not end in order.
  virtual void give_up() = 0;
};

}  // namespace sluice::zero
