#pragma once
// The largest models of one shape that a machine trains: in memory alone, and with a drive. No
// LibTorch. Thread-safe: values and a free function without state.

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/machine.hpp"

namespace sluice::plan {

// A number of blocks of the shape, and its parameters. Both 0: not one block fits.
struct LargestModel {
  std::string nvme_path;  // empty: in device and host memory alone
  std::int64_t layers = 0;
  std::uint64_t parameters = 0;
};

// The largest model without NVMe, whatever the configuration offloads to; then, where the
// configuration offloads to NVMe, the largest model as configured.
std::vector<LargestModel> largest_models(const config::TrainConfig& config,
                                         const config::ModelConfig& model,
                                         const MachineFacts& machine);

}  // namespace sluice::plan
