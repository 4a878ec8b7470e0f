// Copies between host and device through Sluice's device, its pinned memory cut from one arena,
// beside the driver's limit: one large cudaMemcpyAsync between pinned and device memory. Without a
// GPU the host device beside memcpy, which shows that the program works.
//
//   copy_bench DEVICE MIB ROUNDS
//
// DEVICE: host or cuda. A round moves so many MiB on each side, in one copy or in several of 16
// MiB: ours, the limit, and the limit again, in the opposite order every other round. Prints a JSON
// object: by case the GB/s of every slice, both directions together where both run at once.

#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "copy/copy_limit.hpp"
#include "slices.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/offload/arena_source.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace {

using namespace sluice;
using bench::CopyLimit;
using bench::Direction;
using bench::seconds_of;
using bench::Slices;
using bench::take_round;

constexpr std::size_t kBlockBytes = 16 * kMiB;

std::unique_ptr<offload::Device> make_device(const std::string& name, std::size_t size_bytes) {
  const std::uint64_t memory_bytes = 2 * size_bytes;
  if (name == "host") {
    offload::HostDeviceOptions options;
    options.memory_bytes = memory_bytes;
    return offload::make_host_device(options);
  }
  offload::CudaDeviceOptions options;
  options.memory_bytes = memory_bytes;
  return offload::make_cuda_device(options);
}

// Our side: as the engine copies, whose weights and gradients lie in one arena.
class Ours {
 public:
  Ours(const std::string& device, std::size_t size_bytes)
      : device_(make_device(device, size_bytes)),
        pinned_(offload::Tier::host, offload::kUnlimited,
                std::make_unique<offload::ArenaSource>(device_->make_pinned_source(),
                                                       2 * size_bytes, offload::Tier::host)),
        host_from_(pinned_.allocate(size_bytes, "what is copied in")),
        host_to_(pinned_.allocate(size_bytes, "what is copied out")),
        device_to_(device_->memory().allocate(size_bytes, "copied in")),
        device_from_(device_->memory().allocate(size_bytes, "copied out")) {
    std::memset(host_from_.data(), 1, size_bytes);
    std::memset(host_to_.data(), 1, size_bytes);
    device_->begin_copy_in(device_from_.device_span(), host_from_.bytes(), {}).finish();
  }

  std::string_view name() const { return device_->name(); }

  double seconds(Direction direction, std::size_t block_bytes) {
    return seconds_of([&] {
      std::vector<Ticket> tickets;
      for (std::size_t at = 0; at < host_from_.size_bytes(); at += block_bytes) {
        const auto part = [&](auto memory) { return memory.subspan(at, block_bytes); };
        if (direction != Direction::out)
          tickets.push_back(
              device_->begin_copy_in(part(device_to_.device_span()), part(host_from_.bytes()), {}));
        if (direction != Direction::in)
          tickets.push_back(device_->begin_copy_out(part(host_to_.bytes()),
                                                    part(device_from_.device_span()), {}));
      }
      for (Ticket& ticket : tickets) ticket.finish();
    });
  }

 private:
  const std::unique_ptr<offload::Device> device_;
  offload::MemoryPool pinned_;
  const offload::Buffer host_from_, host_to_;
  const offload::Buffer device_to_, device_from_;
};

struct Case {
  const char* name;
  Direction direction;
  bool in_blocks;
};

constexpr Case kCases[] = {{"to the device", Direction::in, false},
                           {"to the host", Direction::out, false},
                           {"both at once", Direction::both, false},
                           {"to the device, 16 MiB each", Direction::in, true},
                           {"to the host, 16 MiB each", Direction::out, true},
                           {"both at once, 16 MiB each", Direction::both, true}};
constexpr std::size_t kCaseCount = std::size(kCases);

std::vector<Slices> measure(Ours& ours, CopyLimit& limit, std::size_t size_bytes, int rounds) {
  std::vector<Slices> slices(kCaseCount);
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t c = 0; c < kCaseCount; ++c) {
      const Case& one = kCases[c];
      const std::size_t block_bytes = one.in_blocks ? kBlockBytes : size_bytes;
      const double gigabytes =
          1e-9 * static_cast<double>(size_bytes) * (one.direction == Direction::both ? 2 : 1);
      Slices warm_up;  // the first round
      take_round(
          round, round == 0 ? warm_up : slices[c],
          [&] { return gigabytes / ours.seconds(one.direction, block_bytes); },
          [&] { return gigabytes / limit.seconds(one.direction); });
    }
  }
  return slices;
}

int run(const std::string& device, std::size_t size_bytes, int rounds) {
  SLUICE_CHECK(device == "host" || device == "cuda", device + ": expected host or cuda");
  SLUICE_CHECK(size_bytes > 0 && size_bytes % kBlockBytes == 0, "MIB: expected a multiple of 16");
  SLUICE_CHECK(rounds > 0, "ROUNDS: expected 1 or more");
  Ours ours(device, size_bytes);
  const std::unique_ptr<CopyLimit> limit =
      device == "host" ? bench::make_memcpy_limit(size_bytes) : bench::make_cuda_limit(size_bytes);
  const std::vector<Slices> slices = measure(ours, *limit, size_bytes, rounds);
  std::printf("{\"device\": \"%s\", \"size_bytes\": %zu, \"cases\": {",
              std::string(ours.name()).c_str(), size_bytes);
  for (std::size_t c = 0; c < kCaseCount; ++c) {
    std::printf("%s\"%s\": ", c == 0 ? "" : ", ", kCases[c].name);
    bench::print_slices(slices[c]);
  }
  std::printf("}}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "usage: copy_bench host|cuda MIB ROUNDS\n");
    return 2;
  }
  return run(argv[1], std::stoul(argv[2]) * kMiB, std::stoi(argv[3]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "copy_bench: %s\n", error.what());
  return 1;
}
