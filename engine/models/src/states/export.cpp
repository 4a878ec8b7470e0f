#include "sluice/models/export.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/safetensors.hpp"
#include "sluice/models/saved_state.hpp"
#include "sluice/models/state_reader.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "states/weight_files.hpp"

namespace sluice::models {

namespace {

constexpr std::uint64_t kTileBytes = 4 * kMiB;  // whole checksum chunks

// Writes the parameters' elements that lie in [begin, begin + values.size()) of the unit's flat
// buffer.
void write_params(WeightFiles& files, std::size_t first_tensor, const zero::UnitLayout& unit,
                  std::uint64_t begin, std::span<const float> values) {
  for (std::size_t p = 0; p < unit.params.size(); ++p) {
    const zero::ParamLayout& param = unit.params[p];
    const zero::ShardRange part = zero::part_in(param, begin, values.size());
    if (part.count == 0) continue;
    files.write_fp32(first_tensor + p, part.begin - param.offset_count,
                     values.subspan(part.begin - begin, part.count));
  }
}

// Throws when `out_path` lies in the run's own directory: its name could be one of the run's files.
void check_outside(const std::string& out_path, const std::string& directory) {
  std::error_code error;
  // A relative name that does not exist stays relative, and has no parent.
  const auto canonical = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  SLUICE_CHECK(canonical(out_path).parent_path() != canonical(directory),
               out_path + ": lies in the directory of the run itself; write it elsewhere");
}

using Progress = std::function<void(std::uint64_t, std::uint64_t)>;

// Writes every unit's master weights, tile by tile, in the order of the units' parameters.
void write_units(const StateReader& saved, WeightFiles& files, const Progress& progress) {
  const RunState& state = saved.state();
  std::uint64_t total_bytes = 0;
  for (const zero::UnitLayout& unit : state.units) total_bytes += unit.flat_count * sizeof(float);
  offload::MemoryPool pool(offload::Tier::host, 3 * kTileBytes, offload::make_host_source());
  const offload::Buffer tile = pool.allocate(kTileBytes, "export");
  const offload::Buffer halves =
      state.format.is_split() ? pool.allocate(kTileBytes, "export") : offload::Buffer();
  std::size_t first_tensor = 0;
  std::uint64_t done_bytes = 0;
  for (const zero::UnitLayout& unit : state.units) {
    const std::uint64_t size_bytes = unit.flat_count * sizeof(float);
    for (std::uint64_t offset = 0; offset < size_bytes; offset += kTileBytes) {
      const std::span<std::byte> bytes =
          tile.bytes().first(std::min(kTileBytes, size_bytes - offset));
      const std::span<float> values(reinterpret_cast<float*>(bytes.data()),
                                    bytes.size() / sizeof(float));
      saved.read_master(unit.name, offset / sizeof(float), values, halves.bytes());
      write_params(files, first_tensor, unit, offset / sizeof(float), values);
      done_bytes += bytes.size();
      if (progress) progress(done_bytes, total_bytes);
    }
    first_tensor += unit.params.size();
  }
}

}  // namespace

ExportResult export_weights(const std::string& run_directory, const std::string& out_path,
                            const ExportOptions& options, const Progress& progress) {
  // Before anything is read: a run that is at work there is named.
  const offload::DirectoryLock lock(run_directory, offload::DirectoryLock::Mode::shared);
  const std::string directory = find_run(run_directory);
  nvme::BackendChoice choice = nvme::make_backend(nvme::BackendKind::automatic, 16, 2);
  nvme::IoEngine io(std::move(choice.backend), {});
  const StateReader saved(read_state(directory), io);
  check_outside(out_path, directory);
  for (const std::string& each : saved.directories()) check_outside(out_path, each);
  const RunState& state = saved.state();

  ExportResult result;
  result.step = state.step;
  std::vector<TensorSpec> tensors;
  for (const zero::UnitLayout& unit : state.units) {
    for (const zero::ParamLayout& param : unit.params) {
      tensors.push_back({param.name, param.shape});
      result.parameters += param.count;
    }
  }
  result.tensors = tensors.size();
  WeightFiles files(out_path, tensors, options.dtype, options.most_file_bytes);

  write_units(saved, files, progress);
  files.finish();
  result.paths = files.paths();
  for (const std::string& path : result.paths)
    result.file_bytes += std::filesystem::file_size(path);
  return result;
}

}  // namespace sluice::models
