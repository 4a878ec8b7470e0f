#include "saved/rank_places.hpp"

#include <filesystem>
#include <system_error>

#include "sluice/base/error.hpp"
#include "sluice/offload/swap_state.hpp"

namespace sluice::train {

namespace {

void enter_rank_folder(const config::TrainConfig& config, std::string& directory) {
  if (directory.empty()) return;
  directory = offload::rank_folder(directory, config.rank, config.world_size);
  std::error_code error;
  std::filesystem::create_directory(directory, error);
  if (error) throw IoError(error.value(), "create directory", directory);
}

}  // namespace

offload::SwapPlace swap_place(const config::TrainConfig& config, plan::Placement placement) {
  if (placement == plan::Placement::resident) return "";
  const config::OffloadConfig& own = config.zero.offload_optimizer;
  return {(own.nvme_path.empty() ? config.zero.offload_param : own).directories(), {}};
}

std::string swap_directory(const config::TrainConfig& config, plan::Placement placement) {
  return swap_place(config, placement).directory;
}

config::TrainConfig with_rank_folders(config::TrainConfig config, plan::Placement placement) {
  if (config.world_size == 1 || placement == plan::Placement::resident) return config;
  for (config::OffloadConfig* offload :
       {&config.zero.offload_param, &config.zero.offload_optimizer}) {
    enter_rank_folder(config, offload->nvme_path);
    for (std::string& further : offload->further_nvme_paths) enter_rank_folder(config, further);
  }
  return config;
}

}  // namespace sluice::train
