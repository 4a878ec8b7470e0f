#include <cmath>
#include <cstdlib>
#include <string>

#include "mpi/mpi_environment.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/zero/ranks.hpp"

namespace sluice::zero {

// The environment of this component is read here and nowhere else.

std::chrono::duration<double> silence_limit_from_environment() {
  const char* text = std::getenv("SLUICE_RANK_TIMEOUT");
  if (text == nullptr || *text == '\0') return MpiOptions{}.silence_limit;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  SLUICE_CHECK(*end == '\0' && std::isfinite(seconds) && seconds >= 0,
               std::string("SLUICE_RANK_TIMEOUT=") + text + ": a number of seconds is expected");
  return std::chrono::duration<double>(seconds);
}

bool started_by_mpi() {
  // Open MPI; MPICH, Intel MPI and others with PMI, and srun --mpi=pmi2; srun --mpi=pmix.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

bool ranks_on_several_hosts() {
  const LaunchEnvironment place = launch_environment();
  return place.local_size < place.world_size;
}

void keep_directions_apart() {
  // Open MPI's header comes on top. Eager messages of more than max_send_size are refused.
  const std::string limit = std::to_string(kMessageBytesBetweenHosts + (std::size_t{16} << 10U));
  for (const char* name : {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit",
                           "OMPI_MCA_btl_tcp_max_send_size"}) {
    constexpr int kOnlyIfUnset = 0;
    ::setenv(name, limit.c_str(), kOnlyIfUnset);
  }
}

}  // namespace sluice::zero
