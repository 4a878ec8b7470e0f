// IoEngine against an array in memory: random reads and writes, single and in lists, several in
// flight, with and without faults. All backends together do 100,000 operations with faults.

#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <random>
#include <vector>

#include "faulty_backend.hpp"
#include "nvme_test_support.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

constexpr std::uint64_t kLargestFile = 512U << 10U;
constexpr std::uint64_t kSeed = 20'240'611;

struct Operation {
  IoOp op;
  std::uint64_t offset_bytes;
  TestBuffer buffer;
};

struct Begun {
  std::vector<const Operation*> operations;  // one, or a list of one direction
  Ticket ticket;
};

// One file, its model, and rounds of operations that share no block.
class ModelRun {
 public:
  ModelRun(IoEngine& engine, const SwapFile& file, std::uint64_t seed)
      : engine_(engine), file_(file), random_(seed) {}

  std::size_t operations() const { return operations_; }
  std::size_t errors() const { return errors_; }

  void round() {
    std::deque<Operation> batch;
    taken_.assign(kLargestFile / 4096 + 1, false);
    const std::uint64_t old_bytes = model_.size();
    const std::size_t wanted = 1 + pick(8);
    for (std::size_t i = 0; i < wanted; ++i) choose_one(batch, old_bytes);
    std::vector<Begun> begun;
    if (pick(2) == 0) {
      for (const Operation& operation : batch) begun.push_back(begin({&operation}));
    } else {
      for (const IoOp op : {IoOp::read, IoOp::write}) {
        std::vector<const Operation*> list;
        for (const Operation& operation : batch) {
          if (operation.op == op) list.push_back(&operation);
        }
        begun.push_back(begin(list));
      }
    }
    for (Begun& some : begun) finish(some);
    operations_ += batch.size();
    ASSERT_EQ(file_.size_bytes(), model_.size());
  }

  void read_beyond_the_end() {
    TestBuffer buffer(1 + pick(10'000));
    const std::uint64_t offset =
        model_.size() + 1 - std::min<std::uint64_t>(buffer.bytes().size(), pick(model_.size()) + 1);
    EXPECT_THROW(engine_.begin_read(file_, offset, buffer.bytes()).finish(), IoError);
    ++operations_;
  }

  void compare_whole_file() const {
    ASSERT_TRUE(same_bytes(read_whole_file(file_.path()), model_));
  }

 private:
  std::uint64_t pick(std::uint64_t below) { return below == 0 ? 0 : random_() % below; }

  // Sizes of all magnitudes, offsets and addresses on and off the alignment.
  void choose_one(std::deque<Operation>& batch, std::uint64_t old_bytes) {
    const IoOp op = pick(2) == 0 ? IoOp::read : IoOp::write;
    const std::uint64_t limit = op == IoOp::read ? old_bytes : kLargestFile;
    if (limit == 0) return;
    std::uint64_t offset = pick(limit);
    std::uint64_t size = 1 + pick(std::uint64_t{1} << pick(17));
    if (pick(2) == 0) offset = align_down(offset, 512);
    if (pick(3) == 0) size = align_up(size, 512);
    size = std::min(size, limit - offset);
    for (std::uint64_t block = offset / 4096; block <= (offset + size - 1) / 4096; ++block) {
      if (taken_[block]) return;
    }
    for (std::uint64_t block = offset / 4096; block <= (offset + size - 1) / 4096; ++block) {
      taken_[block] = true;
    }
    batch.push_back({op, offset, TestBuffer(size, pick(2) == 0 ? 0 : pick(64))});
    if (op == IoOp::write) fill_random(batch.back().buffer.bytes(), random_());
  }

  Begun begin(const std::vector<const Operation*>& operations) {
    Begun begun{operations, {}};
    if (operations.empty()) return begun;
    if (operations.front()->op == IoOp::read) {
      std::vector<ReadRange> ranges;
      ranges.reserve(operations.size());
      for (const Operation* operation : operations)
        ranges.push_back({operation->offset_bytes, writable(*operation)});
      begun.ticket = engine_.begin_reads(file_, ranges);
    } else {
      std::vector<WriteRange> ranges;
      ranges.reserve(operations.size());
      for (const Operation* operation : operations)
        ranges.push_back({operation->offset_bytes, operation->buffer.bytes()});
      begun.ticket = engine_.begin_writes(file_, ranges);
    }
    return begun;
  }

  static std::span<std::byte> writable(const Operation& operation) {
    return const_cast<Operation&>(operation).buffer.bytes();
  }

  // Repeats failed operations until they succeed; until then, a write's range may hold anything.
  void finish(Begun& begun) {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      try {
        begun.ticket.finish();
        for (const Operation* operation : begun.operations) check(*operation);
        return;
      } catch (const IoError& error) {
        ASSERT_EQ(error.code().value(), EIO) << error.what();
        ++errors_;
        begun = begin(begun.operations);
      }
    }
    FAIL() << "no attempt succeeded";
  }

  void check(const Operation& operation) {
    const auto bytes = operation.buffer.bytes();
    if (operation.op == IoOp::read) {
      ASSERT_TRUE(
          same_bytes(bytes, std::span(model_).subspan(operation.offset_bytes, bytes.size())))
          << "read of " << bytes.size() << " at " << operation.offset_bytes;
      return;
    }
    if (model_.size() < operation.offset_bytes + bytes.size()) {
      model_.resize(operation.offset_bytes + bytes.size());
    }
    std::copy(bytes.begin(), bytes.end(),
              model_.begin() + static_cast<std::ptrdiff_t>(operation.offset_bytes));
  }

  IoEngine& engine_;
  const SwapFile& file_;
  std::mt19937_64 random_;
  std::vector<std::byte> model_;
  std::vector<bool> taken_;  // by 4096 bytes of the file
  std::size_t operations_ = 0;
  std::size_t errors_ = 0;
};

enum class Faults { none, random };

class IoEngineModel : public ::testing::TestWithParam<std::tuple<BackendCase, Faults>> {};

// About a third of the requests are short, interrupted or refused; one in a hundred fails.
Fault random_fault(std::mt19937_64& random, const IoRequest& request) {
  if (random() % 100 == 0) return Fault::with(-EIO);
  switch (random() % 12) {
    case 0:
      return Fault::with(-EINTR);
    case 1:
      return Fault::with(-EAGAIN);
    case 2:
    case 3:
      return Fault::cut_to(1 + static_cast<std::uint32_t>(random() % request.size_bytes));
    default:
      return {};
  }
}

TEST_P(IoEngineModel, BehavesAsAnArrayOfBytes) {
  const auto& [backend_case, faults] = GetParam();
  SLUICE_SKIP_WITHOUT(backend_case.kind);
  std::cout << "seed " << kSeed << "\n";
  const test::TempDir dir;
  const SwapFile file(dir.file("f"), OpenMode::create, backend_case.direct);
  auto backend = make_backend(backend_case.kind, 8, 3).backend;
  if (faults == Faults::random) {
    FaultyOptions options;
    options.rule = [random = std::mt19937_64(kSeed + 1)](const IoRequest& request,
                                                         std::uint64_t) mutable {
      return random_fault(random, request);
    };
    options.alignment_bytes = file.offset_alignment();
    options.max_taken = 5;
    options.shuffle_seed = kSeed + 2;
    backend = std::make_unique<FaultyBackend>(std::move(backend), std::move(options));
  }
  IoEngine engine(std::move(backend), {8192, 8});
  ModelRun run(engine, file, kSeed);
  const std::size_t wanted = faults == Faults::none ? 3000 : 100'000 / backend_cases().size() + 1;
  for (int round = 0; run.operations() < wanted; ++round) {
    run.round();
    if (round % 20 == 0) run.read_beyond_the_end();
    if (round % 50 == 0) run.compare_whole_file();
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  run.compare_whole_file();
  if (faults == Faults::random) {
    EXPECT_GT(engine.counters().retries, 100U);
    EXPECT_GT(engine.counters().short_transfers, 100U);
    EXPECT_GT(run.errors(), 100U);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, IoEngineModel,
                         ::testing::Combine(::testing::ValuesIn(backend_cases()),
                                            ::testing::Values(Faults::none, Faults::random)),
                         [](const auto& param_info) {
                           return name_of(std::get<0>(param_info.param)) +
                                  (std::get<1>(param_info.param) == Faults::none ? "" : "_faulty");
                         });

}  // namespace
}  // namespace sluice::nvme
