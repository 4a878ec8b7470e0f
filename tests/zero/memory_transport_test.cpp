// Messages between ranks that are threads. Both ends are in the hands of the test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "sluice/base/error.hpp"
#include "threads/memory_transport.hpp"

namespace sluice::zero {
namespace {

constexpr std::size_t kEagerBytes = 256;
using Bytes = std::vector<std::byte>;

class MemoryTransports : public testing::Test {
 protected:
  // Copied, copied into memory of its own, and lent.
  static std::size_t size_of_message(std::size_t number) {
    constexpr std::size_t kSizes[] = {8, kEagerBytes, 2 * kEagerBytes};
    return kSizes[number % std::size(kSizes)];
  }
  static Bytes message(std::size_t number) {
    return Bytes(size_of_message(number), static_cast<std::byte>(number));
  }

  std::vector<std::unique_ptr<Transport>> transports_ = make_memory_transports(2, {kEagerBytes});
  Transport& sender_ = *transports_[0];
  Transport& receiver_ = *transports_[1];
};

TEST_F(MemoryTransports, AnyNumberOfMessagesIsUnderWay) {
  constexpr std::size_t kMessages = 100;
  for (int round = 0; round < 3; ++round) {
    std::vector<Bytes> sent;
    std::vector<Bytes> received;
    for (std::size_t i = 0; i < kMessages; ++i) {
      sent.push_back(message(i));
      received.emplace_back(sent.back().size());
    }
    std::vector<std::unique_ptr<Message>> sends;
    std::vector<std::unique_ptr<Message>> receives;
    for (std::size_t i = 0; i < kMessages; ++i) {
      sends.push_back(sender_.begin_send(1, Lane::payload, sent[i]));
      receives.push_back(receiver_.begin_receive(0, Lane::payload, received[i]));
    }
    // The last ones first: each receive has the message of its number.
    for (std::size_t i = kMessages; i-- > 0;) {
      EXPECT_EQ(sends[i]->done(), sent[i].size() <= kEagerBytes) << i;
      EXPECT_TRUE(receives[i]->done()) << i;
      EXPECT_TRUE(sends[i]->done()) << i;
    }
    EXPECT_EQ(received, sent);
  }
}

TEST_F(MemoryTransports, AMessageThatIsGivenUpTakesNothingFromTheNext) {
  for (std::size_t i = 0; i < 20; ++i) {
    const Bytes given_up = message(2);
    Bytes never(given_up.size());
    sender_.begin_send(1, Lane::payload, given_up).reset();
    const auto lost = receiver_.begin_receive(0, Lane::payload, never);
    const Bytes sent = message(i);
    Bytes received(sent.size());
    const auto send = sender_.begin_send(1, Lane::payload, sent);
    const auto receive = receiver_.begin_receive(0, Lane::payload, received);
    EXPECT_TRUE(receive->done());
    EXPECT_FALSE(lost->done());
    EXPECT_EQ(received, sent);
    EXPECT_EQ(never, Bytes(given_up.size()));
  }
}

TEST_F(MemoryTransports, AReceiveThatIsGivenUpTakesNothingFromTheNext) {
  for (std::size_t i = 0; i < 20; ++i) {
    Bytes nothing(8);
    const auto lost = sender_.begin_send(1, Lane::payload, message(0));
    receiver_.begin_receive(0, Lane::payload, nothing).reset();
    const Bytes sent = message(i);
    Bytes received(sent.size());
    const auto send = sender_.begin_send(1, Lane::payload, sent);
    EXPECT_TRUE(receiver_.begin_receive(0, Lane::payload, received)->done());
    EXPECT_EQ(received, sent);
  }
}

TEST_F(MemoryTransports, AnOfferIsReadInPlaceBehindAShorterHeader) {
  const Bytes header(10, std::byte{1});
  const Bytes offered(1000, std::byte{2});
  Bytes received(12, std::byte{9});
  const auto send = sender_.begin_offer(1, header, offered);
  const auto receive = receiver_.begin_receive(0, Lane::headers, received);
  ASSERT_TRUE(receive->done());
  Bytes expected(12, std::byte{9});
  std::fill_n(expected.begin(), header.size(), std::byte{1});
  EXPECT_EQ(received, expected);
  std::unique_ptr<Offer> offer = receive->take_offer();
  ASSERT_TRUE(offer);
  EXPECT_FALSE(receive->take_offer());
  ASSERT_TRUE(offer->open());
  EXPECT_EQ(offer->bytes().data(), offered.data());
  EXPECT_FALSE(send->done());
  offer.reset();
  EXPECT_TRUE(send->done());
}

TEST_F(MemoryTransports, AnOfferThatIsTakenBackCannotBeOpened) {
  const Bytes header(10);
  Bytes received(10);
  auto send = sender_.begin_offer(1, header, message(1));
  const auto receive = receiver_.begin_receive(0, Lane::headers, received);
  ASSERT_TRUE(receive->done());
  const std::unique_ptr<Offer> offer = receive->take_offer();
  send.reset();
  EXPECT_FALSE(offer->open());
  EXPECT_THROW(offer->bytes(), Error);
}

TEST_F(MemoryTransports, AnOpenOfferHoldsItsSender) {
  const Bytes offered(1000, std::byte{2});
  Bytes received(10);
  auto send = sender_.begin_offer(1, received, offered);
  const auto receive = receiver_.begin_receive(0, Lane::headers, received);
  ASSERT_TRUE(receive->done());
  std::unique_ptr<Offer> offer = receive->take_offer();
  ASSERT_TRUE(offer->open());
  std::atomic<bool> is_free{false};
  std::thread leaving([&] {
    send.reset();
    is_free = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_free);
  offer.reset();
  leaving.join();
}

TEST_F(MemoryTransports, SizesThatDifferAreAnError) {
  const Bytes sent = message(0);
  Bytes longer(sent.size() + 1);
  const auto send = sender_.begin_send(1, Lane::payload, sent);
  const auto receive = receiver_.begin_receive(0, Lane::payload, longer);
  EXPECT_THROW(receive->done(), Error);
  Bytes shorter(sent.size() - 1);
  const auto header = sender_.begin_send(1, Lane::headers, sent);
  EXPECT_THROW(receiver_.begin_receive(0, Lane::headers, shorter)->done(), Error);
}

}  // namespace
}  // namespace sluice::zero
