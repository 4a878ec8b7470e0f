#include "nvme/bench/bench_target.hpp"

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/machine.hpp"

namespace sluice::cli {

DriveFileOptions drive_options(const NvmeBenchArguments& arguments) {
  const bool writes = arguments.pattern != nvme::LoadPattern::read;
  return {arguments, arguments.block_bytes,
          writes ? "--op " + std::string(name_of(arguments.pattern)) : ""};
}

bool has_order(nvme::LoadPattern pattern) {
  return pattern == nvme::LoadPattern::mixed || pattern == nvme::LoadPattern::swap;
}

unsigned reads_per_write(const NvmeBenchArguments& arguments) {
  return arguments.reads_per_write.value_or(nvme::IoEngineOptions{}.reads_per_write);
}

namespace {

nvme::LoadOptions load_options(const NvmeBenchArguments& arguments, std::uint64_t size_bytes) {
  nvme::LoadOptions options;
  options.pattern = arguments.pattern;
  options.access = arguments.access;
  options.size_bytes = size_bytes;
  SLUICE_CHECK(!arguments.tensors || arguments.pattern == nvme::LoadPattern::swap,
               "--tensors: needs --op swap");
  SLUICE_CHECK(!arguments.reads_per_write || has_order(arguments.pattern),
               "--reads-per-write: needs --op mixed or swap, which have both");
  if (arguments.tensors)
    options.tensor_bytes = nvme::swap_tensor_sizes(*arguments.tensors, size_bytes);
  return options;
}

}  // namespace

void check_load(const NvmeBenchArguments& arguments, std::uint64_t size_bytes) {
  const std::uint64_t needed = nvme::load_memory_bytes(load_options(arguments, size_bytes),
                                                       {arguments.block_bytes, arguments.depth});
  const std::uint64_t available = plan::available_memory_bytes();
  // `available` is 0 when the system does not report it.
  if (available == 0 || checked_mul(needed, arguments.paths.size()) <= available) return;
  throw OutOfMemory("host", checked_mul(needed, arguments.paths.size()), available,
                    "buffers for --depth " + std::to_string(arguments.depth) + " of --block " +
                        format_bytes(arguments.block_bytes) +
                        "; fewer or smaller blocks need less");
}

CpuTime cpu_time_of(const NvmeBenchArguments& arguments) {
  return arguments.paths.size() > 1 && !arguments.fio ? CpuTime::of_all : CpuTime::known;
}

BenchTarget::BenchTarget(const NvmeBenchArguments& arguments, DriveFile drive)
    : drive_(std::move(drive)) {
  if (!drive_.own())
    check_load(arguments, drive_.size_bytes());  // a bench file was checked before it was made
  nvme::BackendChoice choice =
      nvme::make_backend(arguments.backend, arguments.depth, arguments.io_threads);
  why_not_better_ = choice.why_not_better;
  engine_ = std::make_unique<nvme::IoEngine>(
      std::move(choice.backend),
      nvme::IoEngineOptions{arguments.block_bytes, arguments.depth, reads_per_write(arguments)});
  nvme::LoadOptions options = load_options(arguments, drive_.size_bytes());
  // fio writes content of its own, so the content cannot be verified beside it.
  options.verify = drive_.own() && !(arguments.fio && arguments.pattern != nvme::LoadPattern::read);
  load_ = std::make_unique<nvme::Load>(*engine_, drive_.file(), options);
}

}  // namespace sluice::cli
