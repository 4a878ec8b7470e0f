#include "sluice/base/random_id.hpp"

#include <random>
#include <string_view>

namespace sluice {

std::string random_id() {
  std::random_device device;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id;
  for (int i = 0; i < 16; ++i) id += kDigits[device() % kDigits.size()];
  return id;
}

}  // namespace sluice
