// What IoEngine's software costs: its rate on a file in memory against a bare loop over the same
// interface of the kernel, where nothing but software counts.
//
// Both sides move the same slice of the file to or from the same memory in turn, the order swapped
// at every pair; `ratio` is the median of the ratios of the pairs. `tensor`: the slice is one
// transfer. `tensors`: every block is a transfer of its own, twice the queue of them begun ahead;
// `lists`: in lists of 16. The file lies in SLUICE_BENCH_DIR, else /dev/shm; there it is buffered.
// It is removed at the end.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bare/bare_loop.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/nvme/io_engine.hpp"

namespace {

using sluice::kMiB;
using sluice::bench::BareLoop;
using sluice::nvme::BackendKind;
using sluice::nvme::IoEngine;
using sluice::nvme::ReadRange;
using sluice::nvme::SwapFile;
using sluice::nvme::WriteRange;

constexpr std::uint64_t kSliceBytes = 64 * kMiB;
constexpr std::uint64_t kFileBytes = 4 * kSliceBytes;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Made when first used, so that listing the benches writes nothing.
struct BenchFile {
  BenchFile()
      : file(path(), sluice::nvme::OpenMode::create, sluice::nvme::DirectIo::off),
        memory(static_cast<std::byte*>(std::aligned_alloc(2 * kMiB, kSliceBytes))),
        slice(memory.get(), kSliceBytes) {
    std::mt19937_64 random(1);
    IoEngine engine(sluice::nvme::make_backend(BackendKind::threads, 8, 4).backend, {});
    for (std::uint64_t at = 0; at < kFileBytes; at += kSliceBytes) {
      auto* words = reinterpret_cast<std::uint64_t*>(memory.get());
      std::generate_n(words, kSliceBytes / sizeof(std::uint64_t), std::ref(random));
      engine.begin_write(file, at, slice).finish();
    }
  }
  ~BenchFile() { std::filesystem::remove(file.path()); }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;

  static std::string path() {
    const char* chosen = std::getenv("SLUICE_BENCH_DIR");
    const std::filesystem::path dir = chosen != nullptr ? chosen : "/dev/shm";
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

enum class Op { read, write };
enum class Shape { tensor, tensors, lists };

template <typename Range>
sluice::Ticket begin(IoEngine& engine, std::uint64_t offset, std::span<std::byte> data,
                     std::size_t tensor_bytes) {
  std::array<Range, 16> ranges;
  std::size_t count = 0;
  for (std::size_t at = 0; at < data.size(); at += tensor_bytes)
    ranges.at(count++) = {offset + at, data.subspan(at, tensor_bytes)};
  const std::span<const Range> list(ranges.data(), count);
  if constexpr (std::is_same_v<Range, ReadRange>)
    return engine.begin_reads(bench_file().file, list);
  else
    return engine.begin_writes(bench_file().file, list);
}

void move_by_engine(IoEngine& engine, Op op, Shape shape, std::uint64_t offset) {
  const std::span<std::byte> slice = bench_file().slice;
  const std::size_t block_bytes = engine.options().block_bytes;
  const std::size_t tensor_bytes = shape == Shape::tensor ? slice.size() : block_bytes;
  const std::size_t list_bytes = shape == Shape::lists ? 16 * block_bytes : tensor_bytes;
  const std::size_t ahead =
      std::max<std::size_t>(2, 2 * engine.options().depth * block_bytes / list_bytes);
  std::deque<sluice::Ticket> tickets;
  for (std::size_t at = 0; at < slice.size(); at += list_bytes) {
    if (tickets.size() == ahead) {
      tickets.front().finish();
      tickets.pop_front();
    }
    const std::span<std::byte> list = slice.subspan(at, list_bytes);
    tickets.push_back(op == Op::read ? begin<ReadRange>(engine, offset + at, list, tensor_bytes)
                                     : begin<WriteRange>(engine, offset + at, list, tensor_bytes));
  }
  for (sluice::Ticket& ticket : tickets) ticket.finish();
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::unique_ptr<BareLoop> make_bare_loop(BackendKind kind, unsigned depth) {
  const BenchFile& bench = bench_file();
#ifdef SLUICE_HAVE_URING
  if (kind == BackendKind::io_uring)
    return sluice::bench::make_bare_uring_loop(bench.file.fd(), bench.slice, depth);
#endif
#ifdef SLUICE_HAVE_AIO
  if (kind == BackendKind::libaio)
    return sluice::bench::make_bare_libaio_loop(bench.file.fd(), depth);
#endif
  return nullptr;
}

bool available(BackendKind kind, std::string& why) {
  return kind == BackendKind::io_uring ? sluice::nvme::io_uring_available(why)
                                       : sluice::nvme::libaio_available(why);
}

void bench_io(benchmark::State& state, Op op, BackendKind kind, Shape shape) {
  const auto block_bytes = static_cast<std::uint32_t>(state.range(0));
  const auto depth = static_cast<unsigned>(state.range(1));
  std::string why;
  if (!available(kind, why)) return state.SkipWithError(why.c_str());
  const BenchFile& bench = bench_file();
  const std::unique_ptr<BareLoop> bare = make_bare_loop(kind, depth);
  IoEngine engine(sluice::nvme::make_backend(kind, depth, 1).backend, {block_bytes, depth});
  const auto memory = engine.register_memory(bench.slice);
  const auto file = engine.register_file(bench.file);
  const auto sides = std::to_array<std::function<void(std::uint64_t)>>(
      {[&](std::uint64_t offset) { move_by_engine(engine, op, shape, offset); },
       [&](std::uint64_t offset) {
         bare->move(op == Op::read, offset, bench.slice, block_bytes);
       }});
  std::array<double, 2> seconds{};
  std::vector<double> ratios;
  for (auto _ : state) {
    const std::size_t pair = ratios.size();
    std::array<double, 2> slice_seconds{};
    for (const std::size_t side : {pair % 2, 1 - pair % 2}) {
      slice_seconds.at(side) = seconds_of([&] { sides.at(side)(pair * kSliceBytes % kFileBytes); });
      seconds.at(side) += slice_seconds.at(side);
    }
    state.SetIterationTime(slice_seconds[0]);
    ratios.push_back(slice_seconds[1] / slice_seconds[0]);
  }
  const double moved = 1e-9 * static_cast<double>(ratios.size() * kSliceBytes);
  state.counters["GBps"] = moved / seconds[0];
  state.counters["bound_GBps"] = moved / seconds[1];
  state.counters["ratio"] = median_of(ratios);
}

// read/io_uring/tensor/block:4096/depth:32 and so on.
void register_all() {
  const std::pair<const char*, Op> ops[] = {{"read", Op::read}, {"write", Op::write}};
  const std::pair<const char*, BackendKind> kinds[] = {{"io_uring", BackendKind::io_uring},
                                                       {"libaio", BackendKind::libaio}};
  const std::pair<const char*, Shape> shapes[] = {
      {"tensor", Shape::tensor}, {"tensors", Shape::tensors}, {"lists", Shape::lists}};
  for (const auto& [op_name, op] : ops) {
    for (const auto& [kind_name, kind] : kinds) {
      for (const auto& [shape_name, shape] : shapes) {
        const std::string name = std::string(op_name) + "/" + kind_name + "/" + shape_name;
        benchmark::RegisterBenchmark(name.c_str(), bench_io, op, kind, shape)
            ->ArgNames({"block", "depth"})
            ->ArgsProduct({{4 << 10, 128 << 10}, {32}})
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
