// Whether GPUDirect Storage is used: by what was measured, over FakeCufile.

#include "cuda/direct_storage.hpp"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>

#include "cufile_test_support.hpp"
#include "offload/transfer/wrapped_backend.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kNotUsed = "GPUDirect Storage is not used: ";
constexpr const char* kUsed = "GPUDirect Storage is used: ";

class DirectStorageLine : public testing::Test {
 protected:
  class NoReader final : public DirectReader {
   public:
    std::optional<Ticket> begin_read(const FileRange&, DeviceSpan, const ComputePoint&) override {
      return std::nullopt;
    }
    std::string why_not() const override { return ""; }
  };

  DirectStorage decided(double by_cufile, double staged, const std::string& why_not_direct = "") {
    DirectStorage measured{by_cufile,      staged, bytes_right,
                           why_not_direct, "",     std::make_unique<NoReader>()};
    cuda::decide(measured);
    return measured;
  }

  bool bytes_right = true;
};

TEST_F(DirectStorageLine, UsesWhatIsFaster) {
  const DirectStorage found = decided(6e9, 3e9);
  EXPECT_NE(found.reader, nullptr);
  EXPECT_EQ(found.line, std::string(kUsed) + "5.59 GiB/s, through host memory 2.79 GiB/s");
}

TEST_F(DirectStorageLine, DoesNotUseWhatIsSlowerOrAsFast) {
  for (const double by_cufile : {2e9, 3e9}) {
    const DirectStorage found = decided(by_cufile, 3e9);
    EXPECT_EQ(found.reader, nullptr);
    EXPECT_THAT(found.line,
                AllOf(StartsWith(kNotUsed), HasSubstr("through host memory 2.79 GiB/s")));
  }
}

TEST_F(DirectStorageLine, SaysThatItIsNotDirectAlsoWhereItIsUsed) {
  const DirectStorage slower = decided(2e9, 3e9, "no nvidia-fs");
  EXPECT_EQ(slower.reader, nullptr);
  EXPECT_EQ(slower.line, std::string(kNotUsed) +
                             "no nvidia-fs; cuFile would copy through host memory itself (1.86 "
                             "GiB/s beside 2.79 GiB/s)");
  const DirectStorage faster = decided(4e9, 3e9, "no nvidia-fs");
  EXPECT_NE(faster.reader, nullptr);
  EXPECT_THAT(faster.line,
              AllOf(StartsWith("cuFile is used, but copies through host memory itself"),
                    HasSubstr("no nvidia-fs"), HasSubstr("3.73 GiB/s")));
}

TEST_F(DirectStorageLine, DoesNotUseWhatReadNothingOrWrongBytes) {
  EXPECT_EQ(decided(0, 0, "no library").line, std::string(kNotUsed) + "no library");
  bytes_right = false;
  const DirectStorage found = decided(6e9, 3e9, "other bytes");
  EXPECT_EQ(found.reader, nullptr);
  EXPECT_EQ(found.line, std::string(kNotUsed) + "other bytes");
}

class ProbeDirectStorage : public test::CufileTest {
 protected:
  ProbeDirectStorage() {
    gpu->before_copy = [this] { ++now; };
  }

  DirectStorage probe(const DirectStorageOptions& options = {.file_bytes = 8 * kMiB, .rounds = 3}) {
    return probe_of(*device, files, options);
  }
  DirectStorage probe_of(Device& of, std::shared_ptr<cuda::CufileApi> by,
                         const DirectStorageOptions& options) {
    const MoverOptions mover{.tile_bytes = kMiB, .tiles = 3};
    DirectStorage found = cuda::probe(
        {std::move(by), "no library here"}, {of, io, staging, mover, place}, options,
        [this] { return std::chrono::steady_clock::time_point(std::chrono::seconds(now)); });
    EXPECT_EQ(staging.usage().live_bytes, 0U);
    EXPECT_EQ(of.memory().usage().live_bytes, 0U);
    EXPECT_EQ(files->open_handles(), 0);
    EXPECT_EQ(files->open_drivers(), found.reader == nullptr ? 0 : 1);
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
    return found;
  }
  // Time goes by with reads of 4 MiB through cuFile, and with copies of tiles of 1 MiB.
  void make_reads_take(int seconds) {
    files->before_read = [this, seconds] { now += seconds; };
  }

  std::atomic<int> now{0};

  MemoryPool staging{Tier::pinned, kUnlimited, made->make_pinned_source()};
  std::string place = dir.path();
};

TEST_F(ProbeDirectStorage, UsesDirectReadsThatAreFaster) {
  make_reads_take(1);
  DirectStorage found = probe();
  EXPECT_THAT(found.line, StartsWith(kUsed));
  EXPECT_EQ(found.why_not_direct, "");
  EXPECT_TRUE(found.bytes_right);
  EXPECT_EQ(found.cufile_bytes_per_second, 4 * kMiB);
  EXPECT_EQ(found.staged_bytes_per_second, kMiB);
  ASSERT_NE(found.reader, nullptr);
  // The file that was measured is gone; the reader reads others.
  const nvme::StripedFile file = write(one(open("other")), 8192);
  const Buffer to = buffer(8192);
  std::optional<Ticket> read = found.reader->begin_read({&file, 0, 8192}, to.device_span(), {});
  ASSERT_TRUE(read);
  read->finish();
  EXPECT_TRUE(holds(to.device_span(), 0));
  found.reader.reset();  // before the file
}

TEST_F(ProbeDirectStorage, WaitsForASlowDrive) {
  nvme::BackendChoice real = nvme::make_backend(nvme::BackendKind::threads, 8, 2);
  nvme::IoEngine slow(std::make_unique<test::SlowBackend>(std::move(real.backend)), {});
  const DirectStorage found = cuda::probe(
      {files, "no library here"}, {*device, slow, staging, {.tile_bytes = kMiB, .tiles = 3}, place},
      {.file_bytes = 8 * kMiB, .rounds = 1}, std::chrono::steady_clock::now);
  EXPECT_TRUE(found.bytes_right) << found.line;
}

TEST_F(ProbeDirectStorage, DoesNotUseDirectReadsThatAreSlower) {
  make_reads_take(8);
  const DirectStorage found = probe();
  EXPECT_THAT(found.line, StartsWith(kNotUsed));
  EXPECT_EQ(found.why_not_direct, "");
  EXPECT_EQ(found.reader, nullptr);
}

TEST_F(ProbeDirectStorage, RefusesCompatibilityModeAtFirst) {
  files->reads_directly = false;
  make_reads_take(8);
  const DirectStorage slower = probe();
  EXPECT_EQ(slower.reader, nullptr);
  EXPECT_THAT(slower.line, AllOf(StartsWith(kNotUsed), HasSubstr("nvidia-fs"),
                                 HasSubstr("would copy through host memory itself")));
  make_reads_take(1);
  const DirectStorage faster = probe();
  EXPECT_NE(faster.reader, nullptr);
  EXPECT_THAT(faster.line, AllOf(Not(StartsWith("GPUDirect")), HasSubstr("nvidia-fs")));
}

TEST_F(ProbeDirectStorage, TriesCompatibilityModeWhereAFileOrReadIsRefused) {
  make_reads_take(1);
  files->fail("handle_register", 1, CU_FILE_IO_NOT_SUPPORTED);
  EXPECT_THAT(probe().line, AllOf(StartsWith("cuFile is used, but copies"),
                                  HasSubstr("does not read this file system directly")));
  files->answer_read(1, {-1, EIO});
  EXPECT_THAT(probe().line,
              AllOf(StartsWith("cuFile is used, but copies"), HasSubstr("cuFile read")));
}

TEST_F(ProbeDirectStorage, DoesNotUseWrongBytes) {
  make_reads_take(1);
  files->reads_wrong_bytes = true;
  const DirectStorage found = probe();
  EXPECT_FALSE(found.bytes_right);
  EXPECT_EQ(files->calls("driver_open"), 1);  // in no other mode either
  EXPECT_EQ(found.line, std::string(kNotUsed) + "cuFile read other bytes than the file holds");
}

TEST_F(ProbeDirectStorage, DoesNotTakeWhatWasThereForWhatWasRead) {
  make_reads_take(1);
  // The two pieces of the first round are read; of the others cuFile only says so.
  for (int nth = 3; nth <= 100; ++nth) files->answer_read(nth, {4 * kMiB, 0});
  EXPECT_FALSE(probe().bytes_right);
}

TEST_F(ProbeDirectStorage, SaysWhatIsMissing) {
  const DirectStorageOptions options{.file_bytes = kMiB, .rounds = 1};
  EXPECT_EQ(probe_of(*device, nullptr, options).line, std::string(kNotUsed) + "no library here");
  const auto host = make_host_device({});
  EXPECT_EQ(probe_of(*host, files, options).line,
            std::string(kNotUsed) + std::string(host->name()) + " is no NVIDIA GPU");
  EXPECT_THAT(probe({.file_bytes = 2 * kDeviceBytes, .rounds = 1}).line,
              AllOf(StartsWith(kNotUsed), HasSubstr("requested on tier device")));
  place = dir.file("absent");
  EXPECT_THAT(probe().line, AllOf(StartsWith(kNotUsed), HasSubstr(place)));
}

TEST_F(ProbeDirectStorage, SaysWhichCallFailsInBothModes) {
  gpu->fail("event_synchronize", 1, cudaErrorIllegalAddress, true);
  EXPECT_THAT(probe().line, AllOf(StartsWith(kNotUsed), HasSubstr("event_synchronize")));
}

TEST_F(ProbeDirectStorage, RefusesOptionsOutOfRange) {
  EXPECT_THROW(probe({.file_bytes = 4096}), InvalidArgument);
  EXPECT_THROW(probe({.file_bytes = 0}), InvalidArgument);
  EXPECT_THROW(probe({.rounds = 0}), InvalidArgument);
}

TEST(LoadCufile, FindsEveryFunctionOrSaysWhatIsMissing) {
  std::string why_not;
  const std::unique_ptr<cuda::CufileApi> files = cuda::load_cufile(why_not);
  EXPECT_EQ(files == nullptr, !why_not.empty()) << why_not;
  EXPECT_THAT(why_not, Not(HasSubstr("has no cuFile")));  // libcufile itself may be absent
}

}  // namespace
}  // namespace sluice::offload
