// The direct reader by cuFile, and the mover with it, over FakeCufile: bytes, order with compute
// work, what goes wrong.

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "cufile_test_support.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/mover.hpp"

namespace sluice::offload {
namespace {

using cuda::CompatMode;
using cuda::CufileRead;
using test::Gate;
using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

class CufileReader : public test::CufileTest {
 protected:
  static constexpr std::uint64_t kFileBytes = 12 * kMiB;
  static constexpr std::uint64_t kPiece = 4 * kMiB;

  CufileReader() { start(); }

  FileRange range(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
    return {&file, offset_bytes, size_bytes};
  }
  Ticket begin(const FileRange& from, DeviceSpan to, const ComputePoint& after = {}) {
    std::optional<Ticket> read = reader->begin_read(from, to, after);
    if (!read) throw Error("not taken");
    return std::move(*read);
  }

  nvme::StripedFile file = write(one(open("a")), kFileBytes);
};

TEST_F(CufileReader, ReadsWholeBlocks) {
  for (const std::uint64_t size_bytes : {std::uint64_t{4096}, kPiece, 2 * kPiece + 4096}) {
    const Buffer to = buffer(size_bytes);
    begin(range(8192, kFileBytes - 8192), to.device_span()).finish();
    EXPECT_TRUE(holds(to.device_span(), 8192)) << size_bytes;
  }
  EXPECT_EQ(files->calls("handle_register"), 1);
}

TEST_F(CufileReader, ReadsEachPartOfAStripedFileFromItsOwn) {
  std::vector<nvme::SwapFile> parts;
  parts.push_back(open("first"));
  parts.push_back(open("second"));
  const nvme::StripedFile striped =
      write(nvme::StripedFile(std::move(parts), nvme::StripeLayout({2, 1}, 64 * kKiB)), 4 * kMiB);
  const Buffer to = buffer(3 * kMiB);
  begin({&striped, 4096, 4 * kMiB - 4096}, to.device_span()).finish();
  EXPECT_TRUE(holds(to.device_span(), 4096));
  EXPECT_EQ(files->open_handles(), 2);
  reader.reset();
}

TEST_F(CufileReader, ReadsOnlyWhenTheMemorysLastUseHasEnded) {
  const Buffer to = buffer(4096);
  Gate last_use;
  Gate later_work;
  std::atomic<bool> used{false};
  gpu->launch(compute, [&, wait = last_use.waiter()] {
    wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // it computes; no read may begin
    std::memset(gpu->as_device(to.device_span().address()), 7, to.size_bytes());
    used = true;
  });
  const ComputePoint unused = device->mark_compute();
  gpu->launch(compute, later_work.waiter());
  std::atomic<bool> too_early{false};
  files->before_read = [&] { too_early = too_early || !used; };
  Ticket read = begin(range(0, 4096), to.device_span(), unused);
  EXPECT_FALSE(read.done());
  last_use.open();
  read.finish();  // does not wait for the work behind the point
  EXPECT_FALSE(too_early);
  EXPECT_TRUE(holds(to.device_span(), 0));
  later_work.open();
  EXPECT_EQ(gpu->stream_synchronize(compute), cudaSuccess);  // it uses what is here
}

TEST_F(CufileReader, MakesNoMoreEventsThanAreInUse) {
  const Buffer to = buffer(4096);
  const int before = gpu->calls("event_create");
  for (int i = 0; i < 50; ++i)
    begin(range(0, 4096), to.device_span(), device->mark_compute()).finish();
  // The marks', and ours, one of which each thread may still have on its way back.
  EXPECT_LE(gpu->calls("event_create") - before, 8);
}

TEST_F(CufileReader, ContinuesShortReads) {
  files->most_bytes = 1000;
  const Buffer to = buffer(8192);
  begin(range(4096, 8192), to.device_span()).finish();
  EXPECT_TRUE(holds(to.device_span(), 4096));
}

TEST_F(CufileReader, TellsWhereTheFileEnds) {
  const Buffer to = buffer(8192);
  try {
    begin({&file, kFileBytes - 4096, 8192}, to.device_span()).finish();
    FAIL() << "the file is shorter";
  } catch (const IoError& e) {
    EXPECT_EQ(e.code().value(), EIO);
    EXPECT_EQ(e.path(), file.path());
    EXPECT_EQ(e.offset_bytes(), kFileBytes - 4096);
    EXPECT_EQ(e.size_bytes(), 8192U);
    EXPECT_THAT(e.what(), HasSubstr("end of file after 4096 bytes"));
  }
}

TEST_F(CufileReader, RepeatsWhatWasInterrupted) {
  const Buffer to = buffer(4096);
  files->answer_read(1, {-1, EINTR});
  files->answer_read(2, {-1, EAGAIN});
  begin(range(0, 4096), to.device_span()).finish();
  EXPECT_TRUE(holds(to.device_span(), 0));
  for (int nth = 1; nth <= 1000; ++nth) files->answer_read(nth, {-1, EINTR});
  EXPECT_THAT(message_of([&] { begin(range(0, 4096), to.device_span()).finish(); }),
              HasSubstr("Interrupted"));
}

TEST_F(CufileReader, TellsTheReadThatFailedAndGoesOn) {
  struct Case {
    CufileRead answer;
    int error_number;
    std::string text;
  };
  const Buffer to = buffer(2 * kPiece);
  for (const Case& each : {Case{{-1, ENODEV}, ENODEV, "cuFile read"},
                           Case{{-CU_FILE_CUDA_CONTEXT_MISMATCH, 0}, EIO, "context mismatch"}}) {
    for (const int nth : {1, 2}) {
      files->answer_read(nth, each.answer);
      try {
        begin(range(0, 2 * kPiece), to.device_span()).finish();
        FAIL() << "a piece failed";
      } catch (const IoError& e) {
        EXPECT_EQ(e.code().value(), each.error_number);
        EXPECT_EQ(e.path(), file.path());
        EXPECT_EQ(e.size_bytes(), kPiece);
        EXPECT_THAT(e.what(), HasSubstr(each.text));
      }
      begin(range(0, 2 * kPiece), to.device_span()).finish();
      EXPECT_TRUE(holds(to.device_span(), 0));
    }
  }
}

TEST_F(CufileReader, TellsWhichCallOfTheRuntimeFailed) {
  const Buffer to = buffer(4096);
  for (const char* function : {"stream_wait_event", "event_record", "event_synchronize"}) {
    const ComputePoint point = device->mark_compute();
    gpu->fail(function, 1, cudaErrorInvalidValue);
    Ticket read = begin(range(0, 4096), to.device_span(), point);  // itself it does not throw
    EXPECT_THAT(message_of<CudaError>([&] { read.finish(); }), HasSubstr(function));
    begin(range(0, 4096), to.device_span(), device->mark_compute()).finish();
  }
}

TEST_F(CufileReader, DrainsBeforeItTellsOfAFailure) {
  Gate gate;
  files->before_read = gate.waiter();
  files->answer_read(1, {-1, EIO});
  const Buffer to = buffer(2 * kPiece);
  Ticket read = begin(range(0, 2 * kPiece), to.device_span());
  // One piece has failed or will at once; the other is held.
  EXPECT_FALSE(read.done());
  gate.open();
  EXPECT_THROW(read.finish(), IoError);
}

TEST_F(CufileReader, EndsItsReadsBeforeItIsGone) {
  Gate gate;
  files->before_read = gate.waiter();
  std::vector<Buffer> to;
  std::vector<Ticket> reads;
  for (int i = 0; i < 3; ++i) {
    to.push_back(buffer(2 * kPiece));
    reads.push_back(begin(range(0, 2 * kPiece), to.back().device_span()));
  }
  Worker opener("opener");
  Ticket opened = opener.begin([&] { gate.open(); });
  reader.reset();
  EXPECT_TRUE(all_done(reads));
  finish_all(reads);
  for (const Buffer& each : to) EXPECT_TRUE(holds(each.device_span(), 0));
  EXPECT_EQ(files->open_handles(), 0);
  EXPECT_EQ(files->open_drivers(), 0);
  opened.finish();
}

TEST_F(CufileReader, LeavesToOthersWhatIsNotWholeBlocks) {
  const Buffer to = buffer(8192);
  EXPECT_FALSE(reader->begin_read(range(0, 8192), to.device_span().first(4097), {}));
  EXPECT_FALSE(reader->begin_read(range(512, 4096), to.device_span().first(4096), {}));
  EXPECT_FALSE(reader->begin_read(range(0, 4096), to.device_span().subspan(64, 4096), {}));
  EXPECT_EQ(reader->why_not(), "");
  EXPECT_EQ(files->calls("handle_register"), 0);
}

TEST_F(CufileReader, KeepsWhyAFileCannotBeReadDirectly) {
  const Buffer to = buffer(4096);
  files->fail("handle_register", 1, CU_FILE_IO_NOT_SUPPORTED);
  EXPECT_FALSE(reader->begin_read(range(0, 4096), to.device_span(), {}));
  EXPECT_FALSE(reader->begin_read(range(0, 4096), to.device_span(), {}));
  EXPECT_EQ(files->calls("handle_register"), 1);
  EXPECT_THAT(reader->why_not(),
              AllOf(HasSubstr(file.path()), HasSubstr("does not read this file system directly"),
                    HasSubstr("CU_FILE_IO_NOT_SUPPORTED")));
  const nvme::StripedFile other = write(one(open("other")), 4096);
  begin({&other, 0, 4096}, to.device_span()).finish();
  reader.reset();
}

TEST_F(CufileReader, DoesNotReadThroughThePageCache) {
  const Buffer to = buffer(4096);
  const nvme::StripedFile buffered =
      one({dir.file("buffered"), nvme::OpenMode::create, nvme::DirectIo::off});
  EXPECT_FALSE(reader->begin_read({&buffered, 0, 4096}, to.device_span(), {}));
  EXPECT_THAT(reader->why_not(), HasSubstr("direct I/O is switched off"));
}

using MakeCufileReader = test::CufileTest;

TEST_F(MakeCufileReader, GivesEverythingBackWhicheverCallFails) {
  for (const char* function : {"set_parameter_bool", "driver_open"}) {
    files->fail(function, 1, CU_FILE_PLATFORM_NOT_SUPPORTED);
    EXPECT_THAT(message_of([&] { start(); }),
                AllOf(HasSubstr(function), HasSubstr("CU_FILE_PLATFORM_NOT_SUPPORTED")));
    EXPECT_EQ(files->open_drivers(), 0);
  }
  gpu->fail("stream_create", 1, cudaErrorUnknown);
  EXPECT_THROW(start(), CudaError);
  EXPECT_EQ(files->open_drivers(), 0);
}

TEST_F(MakeCufileReader, SaysThatTheKernelModuleIsMissing) {
  files->reads_directly = false;
  EXPECT_THAT(message_of([&] { start(CompatMode::refused); }), HasSubstr("nvidia-fs"));
  start(CompatMode::allowed);
}

class MoverWithCufile : public CufileReader {
 protected:
  Mover mover(DirectReader* direct) {
    return {*device, &io, &staging, {.tile_bytes = 8192, .tiles = 3, .direct = direct}};
  }
  MemoryPool staging{Tier::pinned, kUnlimited, device->make_pinned_source()};
};

TEST_F(MoverWithCufile, FetchesAndCountsAsWithoutIt) {
  Mover usual = mover(nullptr);
  Mover with = mover(reader.get());
  for (const std::uint64_t offset_bytes : {0U, 8192U, 512U}) {
    for (const std::size_t size_bytes : {1U, 4095U, 4096U, 5000U, 8192U, 8193U, 9000001U}) {
      // With room for the rest of the last block, and without.
      for (const std::uint64_t room_bytes : {0U, 4096U}) {
        const TieredBytes home(range(offset_bytes, size_bytes + room_bytes));
        const Buffer a = buffer(size_bytes);
        const Buffer b = buffer(size_bytes);
        usual.begin_fetch(home, a.device_span()).finish();
        with.begin_fetch(home, b.device_span()).finish();
        EXPECT_TRUE(offset_bytes == 512 || holds(a.device_span(), offset_bytes)) << size_bytes;
        EXPECT_TRUE(std::equal(gpu->as_device(a.device_span().address()),
                               gpu->as_device(a.device_span().address()) + size_bytes,
                               gpu->as_device(b.device_span().address())))
            << offset_bytes << " " << size_bytes;
        EXPECT_EQ(with.bytes().read, usual.bytes().read) << offset_bytes << " " << size_bytes;
        EXPECT_EQ(with.bytes().to_device, usual.bytes().to_device);
      }
    }
  }
  EXPECT_GT(files->calls("read"), 0);
}

TEST_F(MoverWithCufile, TakesOnlyTheLastBytesThroughTiles) {
  Mover with = mover(reader.get());
  const Buffer to = buffer(3 * kMiB + 100);
  const std::uint64_t before = device->counters().in_bytes;
  with.begin_fetch(TieredBytes(range(0, kFileBytes)), to.device_span()).finish();
  EXPECT_TRUE(holds(to.device_span(), 0));
  EXPECT_EQ(device->counters().in_bytes - before, 100U);
}

TEST_F(MoverWithCufile, TakesTheUsualWayWhereAFileCannotBeReadDirectly) {
  files->fail("handle_register", 1, CU_FILE_IO_NOT_SUPPORTED);
  Mover with = mover(reader.get());
  const Buffer to = buffer(3 * kMiB);
  with.begin_fetch(TieredBytes(range(0, kFileBytes)), to.device_span()).finish();
  EXPECT_TRUE(holds(to.device_span(), 0));
  EXPECT_EQ(files->calls("read"), 0);
  EXPECT_EQ(with.bytes().read, 3 * kMiB);
}

TEST_F(MoverWithCufile, TellsOfAFailedReadWhenItsTilesHaveEnded) {
  Mover with = mover(reader.get());
  files->answer_read(1, {-1, EIO});
  const Buffer to = buffer(kMiB + 100);
  EXPECT_THROW(with.begin_fetch(TieredBytes(range(0, kFileBytes)), to.device_span()).finish(),
               IoError);
}

}  // namespace
}  // namespace sluice::offload
