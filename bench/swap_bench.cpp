// An optimizer's swap on a drive, as `sluice nvme bench --op swap` has it, beside a bare loop over
// the same interface of the kernel that reads and writes as much in blocks of the same size. For
// machines without fio.
//
//   swap_bench DIR MIB ROUNDS SLICE_SECONDS BACKEND
//
// BACKEND: io_uring or libaio. On so many MiB of DIR/bench.sluice, which is made where it is not
// there. A round is a slice of ours, of the bare loop, and of the bare loop again, in the opposite
// order every other round. Prints a JSON object: GB/s of every slice, read and written together.

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "bare/bare_swap.hpp"
#include "slices.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/bench_file.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/nvme/load.hpp"

namespace {

using namespace sluice;
using bench::seconds_of;

constexpr std::uint32_t kBlockBytes = 256 * kKiB;  // the engine's defaults
constexpr unsigned kDepth = 32;

struct Arguments {
  std::string directory;
  std::uint64_t size_bytes = 0;
  int rounds = 0;
  double slice_seconds = 0;
  std::string backend;
};

std::unique_ptr<bench::BareSwap> make_bare([[maybe_unused]] nvme::BackendKind kind,
                                           [[maybe_unused]] const bench::SwapRange& range) {
#ifdef SLUICE_HAVE_URING
  if (kind == nvme::BackendKind::io_uring) return bench::make_bare_uring_swap(range);
#endif
#ifdef SLUICE_HAVE_AIO
  if (kind == nvme::BackendKind::libaio) return bench::make_bare_libaio_swap(range);
#endif
  throw InvalidArgument("this build has no such backend");
}

nvme::BackendKind kind_of(const std::string& name) {
  std::string why_not;
  if (name == "io_uring" && nvme::io_uring_available(why_not)) return nvme::BackendKind::io_uring;
  if (name == "libaio" && nvme::libaio_available(why_not)) return nvme::BackendKind::libaio;
  throw InvalidArgument(why_not.empty() ? name + ": expected io_uring or libaio"
                                        : name + " is not to be had: " + why_not);
}

int run(const Arguments& arguments) {
  const nvme::BackendKind kind = kind_of(arguments.backend);
  nvme::IoEngine engine(nvme::make_backend(kind, kDepth, 1).backend, {kBlockBytes, kDepth});
  const nvme::SwapFile file = nvme::open_bench_file(arguments.directory, arguments.size_bytes,
                                                    engine, nvme::DirectIo::on, {});
  nvme::LoadOptions options;
  options.pattern = nvme::LoadPattern::swap;
  options.size_bytes = arguments.size_bytes;
  nvme::Load load(engine, file, options);
  const auto bare = make_bare(kind, {file.fd(), arguments.size_bytes, kBlockBytes, kDepth});
  const auto ours_rate = [&](double seconds) {
    return 1e-9 * load.run(seconds).bytes_per_second();
  };
  const auto bare_rate = [&](double seconds) {
    double moved = 0;
    const double took = seconds_of([&] { moved = static_cast<double>(bare->run(seconds)); });
    return 1e-9 * moved / took;
  };
  ours_rate(arguments.slice_seconds);  // the first requests of either are slow
  bare_rate(arguments.slice_seconds);
  bench::Slices slices;
  for (int round = 0; round < arguments.rounds; ++round) {
    bench::take_round(
        round, slices, [&] { return ours_rate(arguments.slice_seconds); },
        [&] { return bare_rate(arguments.slice_seconds); });
  }
  std::printf("{\"backend\": \"%s\", \"slices\": ", arguments.backend.c_str());
  bench::print_slices(slices);
  std::printf("}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) {
    std::fprintf(stderr, "usage: swap_bench DIR MIB ROUNDS SLICE_SECONDS io_uring|libaio\n");
    return 2;
  }
  return run(
      {argv[1], std::stoul(argv[2]) * kMiB, std::stoi(argv[3]), std::stod(argv[4]), argv[5]});
} catch (const std::exception& error) {
  std::fprintf(stderr, "swap_bench: %s\n", error.what());
  return 1;
}
