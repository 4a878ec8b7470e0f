// sluice/zero/nccl.hpp in a build without NCCL's headers.

#include "sluice/base/error.hpp"
#include "sluice/zero/nccl.hpp"

namespace sluice::zero {

std::string find_why_no_nccl() {
  return "this build has no NCCL (SLUICE_WITH_NCCL)";
}

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& /*options*/) {
  throw Error(find_why_no_nccl());
}

}  // namespace sluice::zero
