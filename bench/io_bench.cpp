// Throughput of IoEngine against its bound: plain threads, one for each place of the queue, that do
// nothing but pread or pwrite with O_DIRECT on blocks of the same size of the same file.
//
// Both sides move the same slice of the file in turn, the order swapped at every pair; `ratio` is
// the median of the ratios of the pairs. The file lies in SLUICE_BENCH_DIR (else the current
// folder), is fully written with random data and removed at the end.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/nvme/io_engine.hpp"

namespace {

using sluice::kMiB;
using sluice::nvme::BackendKind;
using sluice::nvme::DirectIo;
using sluice::nvme::IoEngine;
using sluice::nvme::IoOp;
using sluice::nvme::OpenMode;
using sluice::nvme::SwapFile;

constexpr std::uint64_t kSliceBytes = 64 * kMiB;
constexpr std::uint64_t kFileBytes = 4 * kSliceBytes;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Made when first used, so that listing the benches writes nothing.
struct BenchFile {
  BenchFile()
      : file(path_in_bench_dir(), OpenMode::create, DirectIo::automatic),
        memory(static_cast<std::byte*>(std::aligned_alloc(4096, kSliceBytes))),
        slice(memory.get(), kSliceBytes) {
    std::mt19937_64 random(1);
    for (std::uint64_t at = 0; at < kFileBytes; at += kSliceBytes) {
      auto* words = reinterpret_cast<std::uint64_t*>(memory.get());
      std::generate_n(words, kSliceBytes / sizeof(std::uint64_t), std::ref(random));
      IoEngine engine(sluice::nvme::make_backend(BackendKind::threads, 8, 4).backend, {});
      engine.begin_write(file, at, slice).finish();
    }
    file.sync_data();
  }
  ~BenchFile() { std::filesystem::remove(file.path()); }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;

  static std::string path_in_bench_dir() {
    const char* chosen = std::getenv("SLUICE_BENCH_DIR");
    const std::filesystem::path dir = chosen != nullptr ? chosen : std::filesystem::current_path();
    return (dir / ("io_bench." + std::to_string(::getpid()))).string();
  }

  SwapFile file;
  std::unique_ptr<std::byte, FreeMemory> memory;
  std::span<std::byte> slice;
};

BenchFile& bench_file() {
  static BenchFile file;
  return file;
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The bound: `depth` threads take the blocks of the slice in turn. Returns false when one failed.
bool move_slice_raw(IoOp op, const SwapFile& file, std::uint64_t offset, std::span<std::byte> slice,
                    std::uint32_t block_bytes, unsigned depth) {
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> good{true};
  const auto work = [&] {
    for (std::uint64_t at = 0; (at = next.fetch_add(block_bytes)) < slice.size();) {
      const auto place = static_cast<off_t>(offset + at);
      const ssize_t moved = op == IoOp::read
                                ? ::pread(file.fd(), slice.data() + at, block_bytes, place)
                                : ::pwrite(file.fd(), slice.data() + at, block_bytes, place);
      if (moved != static_cast<ssize_t>(block_bytes)) good = false;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < depth; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return good;
}

void move_slice(IoEngine& engine, IoOp op, const SwapFile& file, std::uint64_t offset,
                std::span<std::byte> slice) {
  sluice::Ticket ticket = op == IoOp::read ? engine.begin_read(file, offset, slice)
                                           : engine.begin_write(file, offset, slice);
  ticket.finish();
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

bool available(BackendKind kind, std::string& why) {
  if (kind == BackendKind::io_uring) return sluice::nvme::io_uring_available(why);
  if (kind == BackendKind::libaio) return sluice::nvme::libaio_available(why);
  return true;
}

void bench_io(benchmark::State& state, IoOp op, BackendKind kind) {
  const auto block_bytes = static_cast<std::uint32_t>(state.range(0));
  const auto depth = static_cast<unsigned>(state.range(1));
  std::string why;
  if (!available(kind, why)) {
    state.SkipWithError(why.c_str());
    return;
  }
  BenchFile& bench = bench_file();
  IoEngine engine(sluice::nvme::make_backend(kind, depth, std::min(depth, 64U)).backend,
                  {block_bytes, depth});
  std::uint64_t round = 0;
  double engine_seconds = 0;
  double bound_seconds = 0;
  std::vector<double> ratios;
  bool good = true;
  for (auto _ : state) {
    const std::uint64_t offset = round * kSliceBytes % kFileBytes;
    double engine_slice = 0;
    double bound_slice = 0;
    for (int side = 0; side < 2; ++side) {
      if ((round + static_cast<std::uint64_t>(side)) % 2 == 0) {
        engine_slice = seconds_of([&] { move_slice(engine, op, bench.file, offset, bench.slice); });
      } else {
        bound_slice = seconds_of([&] {
          good = move_slice_raw(op, bench.file, offset, bench.slice, block_bytes, depth) && good;
        });
      }
    }
    state.SetIterationTime(engine_slice);
    engine_seconds += engine_slice;
    bound_seconds += bound_slice;
    ratios.push_back(bound_slice / engine_slice);
    ++round;
  }
  if (!good) state.SkipWithError("a transfer of the bound failed");
  const double moved = 1e-9 * static_cast<double>(round * kSliceBytes);
  state.counters["GBps"] = moved / engine_seconds;
  state.counters["bound_GBps"] = moved / bound_seconds;
  state.counters["ratio"] = median_of(ratios);
  state.SetLabel(bench.file.direct() ? "O_DIRECT" : bench.file.why_buffered());
}

void arguments(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"block", "depth"})
      ->ArgsProduct({{128 << 10, 1 << 20}, {1, 8, 32}})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(bench_io, read / io_uring, IoOp::read, BackendKind::io_uring)->Apply(arguments);
BENCHMARK_CAPTURE(bench_io, read / libaio, IoOp::read, BackendKind::libaio)->Apply(arguments);
BENCHMARK_CAPTURE(bench_io, read / threads, IoOp::read, BackendKind::threads)->Apply(arguments);
BENCHMARK_CAPTURE(bench_io, write / io_uring, IoOp::write, BackendKind::io_uring)->Apply(arguments);
BENCHMARK_CAPTURE(bench_io, write / libaio, IoOp::write, BackendKind::libaio)->Apply(arguments);
BENCHMARK_CAPTURE(bench_io, write / threads, IoOp::write, BackendKind::threads)->Apply(arguments);

}  // namespace

BENCHMARK_MAIN();
