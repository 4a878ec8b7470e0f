#include "sluice/offload/tier.hpp"

namespace sluice::offload {

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device";
    case Tier::pinned:
      return "pinned";
    case Tier::host:
      return "host";
    case Tier::nvme:
      return "nvme";
  }
  return "unknown";
}

}  // namespace sluice::offload
