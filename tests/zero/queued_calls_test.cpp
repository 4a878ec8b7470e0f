// Calls that were begun before the one ahead of them has ended. Rank 1 is a transport in the hands
// of the test, which sees what rank 0 sends and when.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "exchange/exchange_communicator.hpp"
#include "sluice/base/error.hpp"
#include "threads/memory_transport.hpp"

namespace sluice::zero {
namespace {

using testing::Each;

constexpr std::size_t kShard = 1000;
using Bytes = std::vector<std::byte>;

class QueuedCalls : public testing::Test {
 protected:
  std::span<std::byte> memory_of(CallHeader& header) {
    return std::as_writable_bytes(std::span(&header, 1));
  }
  // Rank 1 says that it makes rank 0's call.
  void agree(const std::string& label, std::span<std::byte> full) {
    const HostCall call{{Operation::all_gather, Element::bytes, 0, label}, {}, full};
    told_.push_back(std::make_unique<CallHeader>(header_of(call, 1)));
    messages_.push_back(other_->begin_send(0, Lane::headers, memory_of(*told_.back())));
  }
  std::unique_ptr<Message> receive(std::span<std::byte> bytes) {
    return other_->begin_receive(0, Lane::payload, bytes);
  }
  void send(std::span<const std::byte> bytes) {
    messages_.push_back(other_->begin_send(0, Lane::payload, bytes));
  }
  // The one row of equal gathers that have ended.
  CallCounts gathers() { return comm_.counters().calls.at(0); }
  static void wait_for(Message& message) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!message.done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ASSERT_TRUE(message.done());
  }

  // Sends are copied, as those of a network.
  std::vector<std::unique_ptr<Transport>> transports_ = make_memory_transports(2, {kShard, false});
  std::unique_ptr<Transport> other_ = std::move(transports_[1]);
  std::vector<std::unique_ptr<CallHeader>> told_;
  std::vector<std::unique_ptr<Message>> messages_;
  ExchangeCommunicator comm_{std::move(transports_[0]), {}};
};

TEST_F(QueuedCalls, AreAnnouncedWhenTheyAreBegun) {
  std::array<CallHeader, 2> headers;
  std::vector<std::unique_ptr<Message>> messages;
  for (CallHeader& header : headers)
    messages.push_back(other_->begin_receive(0, Lane::headers, memory_of(header)));
  std::vector<Ticket> calls;
  calls.push_back(comm_.begin_barrier("the start"));
  calls.push_back(comm_.begin_barrier("the commit of step 1"));
  for (const auto& message : messages) EXPECT_TRUE(message->done());
  EXPECT_EQ(headers[0].text_view(), "the start");
  EXPECT_EQ(headers[1].text_view(), "the commit of step 1");
  comm_.abort("the test has seen enough");
  for (Ticket& call : calls) EXPECT_THROW(call.finish(), Error);
}

TEST_F(QueuedCalls, SendThePayloadOfTheNextGatherBehindThatOfTheGatherUnderWay) {
  Bytes first(2 * kShard, std::byte{1});
  Bytes second(2 * kShard, std::byte{2});
  Ticket first_call = comm_.begin_all_gather(std::span(first), "the first");
  Ticket second_call = comm_.begin_all_gather(std::span(second), "the second");
  agree("the first", first);
  agree("the second", second);
  Bytes came_first(kShard);
  Bytes came_second(kShard);
  const auto first_payload = receive(came_first);
  const auto second_payload = receive(came_second);
  wait_for(*first_payload);
  wait_for(*second_payload);
  EXPECT_THAT(came_first, Each(std::byte{1}));
  EXPECT_THAT(came_second, Each(std::byte{2}));
  EXPECT_FALSE(first_call.done());
  send(Bytes(kShard, std::byte{3}));
  first_call.finish();
  EXPECT_EQ(first.back(), std::byte{3});
  EXPECT_FALSE(second_call.done());
  EXPECT_EQ(gathers().sent_bytes, kShard) << "payload counts when its call ends";
  send(Bytes(kShard, std::byte{4}));
  second_call.finish();
  EXPECT_EQ(second.back(), std::byte{4});
  EXPECT_EQ(gathers().sent_bytes, 2 * kShard);
  EXPECT_EQ(gathers().received_bytes, 2 * kShard);
}

// The second gather's own shard is what the first one gathers.
TEST_F(QueuedCalls, WaitForTheGatherWhoseResultTheySend) {
  constexpr std::size_t kHalf = kShard / 2;
  Bytes full(2 * kShard, std::byte{1});
  Ticket first_call = comm_.begin_all_gather(std::span(full).first(kShard), "the first");
  Ticket second_call = comm_.begin_all_gather(std::span(full), "the second");
  agree("the first", std::span(full).first(kShard));
  agree("the second", full);
  Bytes came_first(kHalf);
  Bytes came_second(kShard);
  const auto first_payload = receive(came_first);
  const auto second_payload = receive(came_second);
  wait_for(*first_payload);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for a mistake
  EXPECT_FALSE(second_payload->done());
  send(Bytes(kHalf, std::byte{2}));
  send(Bytes(kShard, std::byte{3}));
  first_call.finish();
  second_call.finish();
  wait_for(*second_payload);
  EXPECT_EQ(came_second.front(), std::byte{1});
  EXPECT_EQ(came_second.back(), std::byte{2});
}

// A call that is no gather, and one in which the ranks disagree, do not disturb the one before.
TEST_F(QueuedCalls, ThatCannotBeMadeFailInTheirTurn) {
  Bytes first(2 * kShard, std::byte{1});
  Bytes second(2 * kShard);
  Ticket first_call = comm_.begin_all_gather(std::span(first), "the first");
  Ticket second_call = comm_.begin_all_gather(std::span(second), "the second");
  agree("the first", first);
  agree("another one", second);
  Bytes came(kShard);
  const auto payload = receive(came);
  wait_for(*payload);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for a mistake
  EXPECT_FALSE(first_call.done());
  send(Bytes(kShard, std::byte{3}));
  first_call.finish();
  EXPECT_THROW(second_call.finish(), InvalidArgument);
}

}  // namespace
}  // namespace sluice::zero
