// sluice/zero/nccl.hpp in a build without NCCL's headers.

#include "sluice/base/error.hpp"
#include "sluice/zero/nccl.hpp"

namespace sluice::zero {

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& /*options*/) {
  throw Error("this build has no NCCL (SLUICE_WITH_NCCL)");
}

}  // namespace sluice::zero
