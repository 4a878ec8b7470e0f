#pragma once
// Measures what LibTorch holds on the device for each kind of unit, by running one micro-batch
// through each. Free functions without state; confined to the thread that computes. Not installed.

#include <functional>
#include <string>

#include "device/run_device.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/plan/machine.hpp"

namespace sluice::train {

// Hears which work of a start begins, in words for users.
using StartedWork = std::function<void(const std::string& work)>;

// Measures on a GPU, for which LibTorch loads its part for GPUs, and takes up to nine tenths of its
// free memory meanwhile. Throws OutOfMemory when a micro-batch does not fit there; Error when
// LibTorch keeps memory of the GPU afterwards; and what make_run_device() throws.
models::UnitWorkspaces measure_workspaces(const config::TrainConfig& config,
                                          const config::ModelConfig& model,
                                          const plan::GpuFacts& gpu, const StartedWork& started);
// Measures on `device`, in its memory pool. Throws OutOfMemory.
models::UnitWorkspaces measure_workspaces(const config::TrainConfig& config,
                                          const config::ModelConfig& model,
                                          const RunDevice& device);

}  // namespace sluice::train
