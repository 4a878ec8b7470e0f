#pragma once
// The functions of sluice/zero/nccl.hpp over any NcclApi: tests pass one of their own. Not
// installed.

#include <memory>

#include "nccl/nccl_api.hpp"
#include "sluice/zero/nccl.hpp"

namespace sluice::zero {

std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclApi> api,
                                                     const NcclOptions& options);

}  // namespace sluice::zero
