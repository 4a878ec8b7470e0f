#include "nvme/bench/device_bench.hpp"

#include <json/value.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nvme/bench/bench_target.hpp"
#include "nvme/bench/device_paths.hpp"
#include "process/exit_code.hpp"
#include "process/signals.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/offload/direct_storage.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/plan/machine.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr const char* kFlag = "--memory cuda";

void check_arguments(const NvmeBenchArguments& arguments) {
  using nvme::LoadPattern;
  const auto refuse = [](bool given, const std::string& what) {
    SLUICE_CHECK(!given, what + ": has no meaning with " + kFlag);
  };
  refuse(arguments.pattern == LoadPattern::swap, "--op swap");
  refuse(arguments.access == nvme::LoadAccess::random, "--access random");
  refuse(arguments.tensors.has_value(), "--tensors");
  refuse(arguments.fio, "--fio");
  refuse(!arguments.html_path.empty(), "--html");
  refuse(arguments.overwrite, "--overwrite");
  refuse(arguments.clean, "--clean (nothing is left behind)");
  SLUICE_CHECK(arguments.paths.size() == 1 && std::filesystem::is_directory(arguments.paths[0]),
               std::string(kFlag) + ": expected one directory");
}

std::string gpu_name(int index) {
  const offload::CudaDevices found = offload::find_cuda_devices();
  const std::string why_not = found.why_missing(index);
  SLUICE_CHECK(why_not.empty(), std::string(kFlag) + ": " + why_not);
  return plan::name_of(
      {.index = index, .name = found.devices[static_cast<std::size_t>(index)].name});
}

double median(const std::vector<double>& values) {
  return nvme::summarize_ratios(values).median;
}

void show(const DevicePaths& found, Console& console) {
  std::vector<std::vector<std::string>> rows = {{"", "GB/s", "of the slower link"}};
  for (const DevicePath& path : found.paths) {
    rows.push_back({path.name, format_gigabytes(median(path.rates)),
                    path.is_link ? "-" : format_number("%.3f", median(path.of_bounds))});
  }
  console.print(format_table(rows));
}

Json::Value to_json(const DevicePaths& found) {
  Json::Value paths(Json::arrayValue);
  for (const DevicePath& path : found.paths) {
    Json::Value object(Json::objectValue);
    object["path"] = path.name;
    object["GBps"] = 1e-9 * median(path.rates);
    for (const double rate : path.rates) object["all_GBps"].append(1e-9 * rate);
    if (!path.is_link) object["of_slower_link"] = median(path.of_bounds);
    for (const double ratio : path.of_bounds) object["all_of_slower_link"].append(ratio);
    paths.append(std::move(object));
  }
  return paths;
}

}  // namespace

int run_device_bench(const NvmeBenchArguments& arguments, Session& session) {
  check_arguments(arguments);
  Console& console = session.console();
  const StopSignals signals;
  DevicePathOptions options;
  options.size_bytes = arguments.size_bytes.value_or(options.size_bytes);
  options.reads = arguments.pattern != nvme::LoadPattern::write;
  options.writes = arguments.pattern != nvme::LoadPattern::read;
  options.seconds = arguments.seconds;
  const std::string name = gpu_name(*arguments.gpu);
  const auto device = offload::make_cuda_device(
      {.index = *arguments.gpu,
       .memory_bytes =
           std::max(options.size_bytes, offload::DirectStorageOptions{}.file_bytes) + kMiB,
       .page_bytes = offload::find_cuda_pages(*arguments.gpu).page_bytes});
  offload::MemoryPool pinned(offload::Tier::pinned, offload::kUnlimited,
                             device->make_pinned_source());
  nvme::BackendChoice backend =
      nvme::make_backend(arguments.backend, arguments.depth, arguments.io_threads);
  nvme::IoEngine io(std::move(backend.backend),
                    {arguments.block_bytes, arguments.depth, reads_per_write(arguments)});
  offload::HeldDirectories held;
  held.hold(arguments.paths[0]);
  offload::SwapPlace place(arguments.paths[0]);
  place.held = &held;
  const DevicePaths found =
      measure_device_paths(*device, io, pinned, place, options, [&](int rounds) {
        console.status("measuring, round " + std::to_string(rounds));
        return signals.stop() == 0;
      });
  console.status("");
  if (!found.bytes_right) throw Error("other bytes arrived than were sent");
  // Not while a signal waits: the probe has rounds of its own.
  std::string direct;
  if (options.reads && signals.stop() == 0)
    direct = offload::probe_direct_storage(*device, io, pinned, {}, place).line;
  console.print(arguments.paths[0] + " and " + name + ", " + format_bytes(options.size_bytes) +
                " a slice, blocks of " + format_bytes(arguments.block_bytes) + ", " +
                std::to_string(arguments.depth) + " in flight, " +
                std::to_string(found.paths.front().rates.size()) + " rounds; " +
                (found.why_buffered.empty() ? "past the page cache"
                                            : "through the page cache: " + found.why_buffered));
  show(found, console);
  if (!direct.empty()) console.print(direct);
  Json::Value object(Json::objectValue);
  object["path"] = valid_utf8(arguments.paths[0]);
  object["device"] = name;
  object["size_bytes"] = Json::UInt64(options.size_bytes);
  object["block_bytes"] = arguments.block_bytes;
  object["depth"] = arguments.depth;
  object["direct"] = found.why_buffered.empty();
  object["paths"] = to_json(found);
  object["gpudirect"] = direct;
  session.emit(object);
  return signals.stop() == 0 ? kExitDone : exit_code_of_signal(signals.stop());
}

}  // namespace sluice::cli
