// In place of join_mpi.cpp where the build has no MPI.

#include "sluice/base/error.hpp"
#include "sluice/zero/ranks.hpp"

namespace sluice::zero {

Ranks join_mpi(const MpiOptions& /*options*/) {
  throw Error(
      "this build has no MPI (SLUICE_WITH_MPI): install libopenmpi-dev and openmpi-bin, and build "
      "again");
}

}  // namespace sluice::zero
