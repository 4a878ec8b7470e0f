// IoEngine over a faulty backend: repeats, reports, and their order.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <vector>

#include "faulty_backend.hpp"
#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSize = 16 * kPage;

class IoEngineFaults : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    SLUICE_SKIP_WITHOUT(GetParam().kind);
    contents_ = random_bytes(kSize, 1);
    write_whole_file(dir_.file("f"), contents_);
    file_.emplace(dir_.file("f"), OpenMode::read_write, GetParam().direct);
  }

  // An engine of 4 KiB blocks; `backend_` is its wrapper.
  std::unique_ptr<IoEngine> engine(FaultyOptions options, unsigned depth = 8) {
    options.alignment_bytes = file_->offset_alignment();
    auto wrapped = std::make_unique<FaultyBackend>(make_backend(GetParam().kind, 16, 3).backend,
                                                   std::move(options));
    backend_ = wrapped.get();
    return std::make_unique<IoEngine>(std::move(wrapped), IoEngineOptions{4096, depth});
  }
  void expect_read_back(IoEngine& engine) {
    TestBuffer in(kSize);
    engine.begin_read(*file_, 0, in.bytes()).finish();
    EXPECT_TRUE(same_bytes(in.bytes(), contents_));
  }
  void expect_written(IoEngine& engine) {
    TestBuffer out(kSize);
    fill_random(out.bytes(), 2);
    engine.begin_write(*file_, 0, out.bytes()).finish();
    EXPECT_TRUE(same_bytes(read_whole_file(file_->path()), out.bytes()));
  }

  test::TempDir dir_;
  std::vector<std::byte> contents_;
  std::optional<SwapFile> file_;
  FaultyBackend* backend_ = nullptr;
};

TEST_P(IoEngineFaults, ShortTransfersAreContinuedFromWhereTheyStopped) {
  // 1000 is no multiple of any alignment: with direct I/O the next request begins before it.
  for (const std::uint32_t size : {512U, 1000U, 2048U, 4095U}) {
    auto e = engine({[size](const IoRequest& request, std::uint64_t index) {
      return index % 2 == 0 ? Fault::cut_to(std::min(size, request.size_bytes)) : Fault{};
    }});
    expect_read_back(*e);
    EXPECT_GT(e->counters().short_transfers, 0U);
    expect_written(*e);
    contents_ = read_whole_file(file_->path());
    EXPECT_EQ(e->counters().read_bytes, kSize);
    EXPECT_EQ(e->counters().written_bytes, kSize);
  }
}

TEST_P(IoEngineFaults, InterruptedAndRefusedRequestsAreRepeated) {
  auto e = engine({[](const IoRequest&, std::uint64_t index) {
    if (index % 3 == 0) return Fault::with(-EINTR);
    if (index % 3 == 1) return Fault::with(-EAGAIN);
    return Fault{};
  }});
  expect_read_back(*e);
  expect_written(*e);
  EXPECT_GE(e->counters().retries, 32U);
  EXPECT_EQ(e->counters().retries + 32, e->counters().requests);
}

TEST_P(IoEngineFaults, EndlessEagainBecomesAnError) {
  auto e = engine({[](const IoRequest&, std::uint64_t) { return Fault::with(-EAGAIN); }});
  TestBuffer in(4096);
  EXPECT_THAT(message_of<IoError>([&] { e->begin_read(*file_, 0, in.bytes()).finish(); }),
              AllOf(HasSubstr("times in a row"), HasSubstr("Resource temporarily unavailable")));
}

TEST_P(IoEngineFaults, ShortTransfersWithoutProgressBecomeAnError) {
  if (!file_->direct())
    return;  // a buffered short transfer always makes progress, or is of 0 bytes
  // One byte of every block, repeatedly: the next request must begin at the block.
  auto e = engine({[](const IoRequest&, std::uint64_t) { return Fault::cut_to(1); }});
  TestBuffer buffer(4096);
  EXPECT_THAT(message_of<IoError>([&] { e->begin_read(*file_, 0, buffer.bytes()).finish(); }),
              HasSubstr("without progress"));
  EXPECT_THAT(message_of<IoError>([&] { e->begin_write(*file_, 0, buffer.bytes()).finish(); }),
              HasSubstr("without progress"));
}

TEST_P(IoEngineFaults, AWriteOfZeroBytesIsAnError) {
  auto e = engine({[](const IoRequest&, std::uint64_t) { return Fault::with(0); }});
  EXPECT_THAT(message_of<IoError>([&] { e->begin_write(*file_, 0, contents_).finish(); }),
              AllOf(HasSubstr("wrote 0 bytes"), HasSubstr("Input/output error")));
}

TEST_P(IoEngineFaults, AReadOfZeroBytesIsTheEndOfTheFile) {
  auto e = engine({[](const IoRequest& request, std::uint64_t) {
                    return request.offset_bytes >= 8192 ? Fault::with(0) : Fault{};
                  }},
                  1);
  TestBuffer in(kSize);
  EXPECT_THAT(message_of<IoError>([&] { e->begin_read(*file_, 0, in.bytes()).finish(); }),
              HasSubstr("end of file after 8192 bytes"));
}

TEST_P(IoEngineFaults, AWriteIntoABlockThatCannotBeReadFailsAndChangesNothing) {
  if (!file_->direct()) return;  // only direct I/O reads a block before changing it
  for (const std::int64_t answer : {std::int64_t{-EIO}, std::int64_t{0}}) {
    auto e = engine({[answer](const IoRequest& request, std::uint64_t) {
      return request.op == IoOp::read ? Fault::with(answer) : Fault{};
    }});
    const auto bytes = random_bytes(10, 3);
    EXPECT_THAT(message_of<IoError>([&] { e->begin_write(*file_, 7, bytes).finish(); }),
                HasSubstr("Input/output error"));
    EXPECT_TRUE(same_bytes(read_whole_file(file_->path()), contents_));
  }
}

TEST_P(IoEngineFaults, AnErrorIsReportedOnlyWhenNothingOfTheTransferIsInFlight) {
  // The third block fails; the others of the first eight come back later, and short.
  auto e = engine({[](const IoRequest&, std::uint64_t index) {
    return index == 2 ? Fault::with(-EIO) : Fault{Fault::Kind::shorten, 0, 2048, true};
  }});
  TestBuffer in(kSize);
  Ticket ticket = e->begin_read(*file_, 0, in.bytes());
  backend_->wait_until_idle_with(7);
  EXPECT_FALSE(ticket.done());
  EXPECT_EQ(backend_->in_flight(), 7U);
  backend_->release_held();
  ticket.wait();
  EXPECT_EQ(backend_->in_flight(), 0U);
  EXPECT_THAT(
      message_of<IoError>([&] { ticket.finish(); }),
      AllOf(HasSubstr("block of 4096 bytes at offset 8192"), HasSubstr("Input/output error")));
  EXPECT_EQ(backend_->history().size(), 8U) << "something was submitted after the error";
  EXPECT_EQ(e->counters().read_bytes, 0U);
}

TEST_P(IoEngineFaults, OtherTransfersGoOnAfterAnError) {
  auto e = engine({[](const IoRequest& request, std::uint64_t) {
    return request.op == IoOp::write ? Fault::with(-EIO) : Fault{};
  }});
  std::vector<Ticket> writes;
  writes.reserve(10);
  for (int i = 0; i < 10; ++i) writes.push_back(e->begin_write(*file_, 0, contents_));
  expect_read_back(*e);
  for (Ticket& ticket : writes) EXPECT_THROW(ticket.finish(), IoError);
  EXPECT_EQ(e->counters().written_bytes, 0U);
}

// Writes and reads 100 blocks in transfers of ten. The n-th request fails, for every n.
TEST_P(IoEngineFaults, EveryPlaceOfASingleErrorIsReported) {
  constexpr std::size_t kBlocks = 10;
  constexpr std::size_t kTransfers = 10;
  constexpr std::size_t kPart = kBlocks * 4096;
  TestBuffer out(kTransfers * kPart);
  TestBuffer in(kTransfers * kPart);
  fill_random(out.bytes(), 3);
  file_->allocate(kTransfers * kPart);
  std::uint64_t failing = 0;
  std::uint64_t seen = 0;  // on the engine's thread, or while nothing is in flight
  auto e = engine({[&](const IoRequest&, std::uint64_t) {
    return seen++ == failing ? Fault::with(-EIO) : Fault{};
  }});
  for (failing = 0; failing < 2 * kTransfers * kBlocks; ++failing) {
    seen = 0;
    std::size_t failed = 0;
    for (const IoOp op : {IoOp::write, IoOp::read}) {
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < kTransfers; ++i) {
        const auto from = i * kPart;
        tickets.push_back(op == IoOp::write
                              ? e->begin_write(*file_, from, out.bytes().subspan(from, kPart))
                              : e->begin_read(*file_, from, in.bytes().subspan(from, kPart)));
      }
      for (std::size_t i = 0; i < kTransfers; ++i) {
        try {
          tickets[i].finish();
        } catch (const IoError& error) {
          ++failed;
          EXPECT_EQ(error.offset_bytes(), i * kPart) << failing;
        }
      }
      ASSERT_EQ(backend_->in_flight(), 0U) << failing;
    }
    ASSERT_EQ(failed, 1U) << failing;
  }
  seen = failing + 1;
  e->begin_read(*file_, 0, in.bytes()).finish();
  EXPECT_TRUE(same_bytes(in.bytes(), out.bytes()));
}

TEST_P(IoEngineFaults, AListEndsWithItsFirstErrorWhenNothingOfItIsInFlight) {
  auto e = engine({[](const IoRequest& request, std::uint64_t) {
    return request.op == IoOp::read && request.offset_bytes == 8192 ? Fault::with(-EIO)
                                                                    : Fault::held();
  }});
  std::vector<TestBuffer> in;
  std::vector<ReadRange> ranges;
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{8192}, std::uint64_t{4096}}) {
    in.emplace_back(4096);
    ranges.push_back({offset, in.back().bytes()});
  }
  ranges.push_back({123, {}});
  Ticket ticket = e->begin_reads(*file_, ranges);
  backend_->wait_until_idle_with(2);
  EXPECT_FALSE(ticket.done());
  backend_->release_held();
  ticket.wait();
  EXPECT_EQ(backend_->in_flight(), 0U);
  EXPECT_THAT(message_of<IoError>([&] { ticket.finish(); }), HasSubstr("offset 8192"));
  EXPECT_TRUE(same_bytes(in[0].bytes(), std::span(contents_).first(4096)));
  EXPECT_TRUE(same_bytes(in[2].bytes(), std::span(contents_).subspan(4096, 4096)));
  EXPECT_EQ(e->counters().read_bytes, 8192U);
  expect_written(*e);
}

TEST_P(IoEngineFaults, AFileTruncatedBetweenTwoReadsIsReported) {
  auto e = engine({});
  expect_read_back(*e);
  std::filesystem::resize_file(file_->path(), 3 * 4096 + 100);
  TestBuffer in(kSize);
  EXPECT_THAT(message_of<IoError>([&] { e->begin_read(*file_, 0, in.bytes()).finish(); }),
              HasSubstr("end of file after 12388 bytes"));
  EXPECT_TRUE(same_bytes(in.bytes().first(3 * kPage), std::span(contents_).first(3 * kPage)));
}

// The drive of the test has space: what is used up is something else.
TEST_P(IoEngineFaults, NoSpaceWhereBytesAreFreeIsNotSaidToBeAFullDisk) {
  if (free_disk_bytes(file_->path()) < kGiB) GTEST_SKIP() << "needs a drive with 1 GiB";
  auto e = engine({[](const IoRequest&, std::uint64_t index) {
    return index == 5 ? Fault::with(-ENOSPC) : Fault{};
  }});
  EXPECT_THAT(
      message_of<IoError>([&] { e->begin_write(*file_, 0, contents_).finish(); }),
      AllOf(HasSubstr("the system reports no space although"), HasSubstr("are free: a quota"),
            Not(HasSubstr("full")), HasSubstr("No space left on device")));
}

TEST_P(IoEngineFaults, MoreBytesThanAskedForIsAnErrorOfTheBackend) {
  auto e = engine({[](const IoRequest& request, std::uint64_t) {
    return Fault::with(request.size_bytes + std::int64_t{1});
  }});
  EXPECT_THAT(message_of<IoError>([&] { e->begin_write(*file_, 0, contents_).finish(); }),
              HasSubstr("more bytes than were asked for"));
}

TEST_P(IoEngineFaults, CompletionsLateAndOutOfOrderEndWhereTheyBelong) {
  FaultyOptions options;
  options.shuffle_seed = 4;
  auto e = engine(options);
  expect_read_back(*e);
  expect_written(*e);
}

TEST_P(IoEngineFaults, AFullQueueIsTriedAgain) {
  FaultyOptions options;
  options.max_taken = 1;
  options.refusals = 20;
  auto e = engine(options);
  expect_read_back(*e);
  expect_written(*e);
}

TEST_P(IoEngineFaults, ABackendThatTakesNothingIsAnErrorOfEveryTransfer) {
  FaultyOptions options;
  options.refusals = 1'000'000;
  auto e = engine(options);
  TestBuffer in(kSize);
  EXPECT_THAT(message_of<IoError>([&] { e->begin_read(*file_, 0, in.bytes()).finish(); }),
              HasSubstr("takes nothing"));
  EXPECT_THROW(e->begin_read(*file_, 0, in.bytes()).finish(), IoError);
}

TEST_P(IoEngineFaults, ABackendThatFailsEndsEveryTransferWithItsError) {
  FaultyOptions options;
  options.max_taken = 1;
  options.throw_at_submit = 4;
  auto e = engine(options, 2);
  std::vector<std::vector<std::byte>> in(5, std::vector<std::byte>(kSize));
  std::vector<Ticket> tickets;
  tickets.reserve(in.size());
  for (auto& bytes : in) tickets.push_back(e->begin_read(*file_, 0, bytes));
  for (Ticket& ticket : tickets) EXPECT_THROW(ticket.finish(), IoError);
  EXPECT_THROW(e->begin_write(*file_, 0, in[0]).finish(), IoError);
}

INSTANTIATE_TEST_SUITE_P(Backends, IoEngineFaults, ::testing::ValuesIn(backend_cases()),
                         [](const auto& param_info) { return name_of(param_info.param); });

}  // namespace
}  // namespace sluice::nvme
