#pragma once
// Durability: the events that a committed step survives. Thread-safe: values.

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace sluice {

// process: a killed process. power: loss of power too (fdatasync of the data, then manifest,
// rename, fsync of the directory). none: nothing.
enum class Durability { process, power, none };

// In configurations and in manifests, in the order of the enum.
inline constexpr std::array<std::string_view, 3> kDurabilityNames = {"process", "power", "none"};
constexpr std::string_view name_of(Durability durability) {
  return kDurabilityNames.at(static_cast<std::size_t>(durability));
}
// Empty when no durability has the name.
constexpr std::optional<Durability> find_durability(std::string_view name) {
  for (std::size_t i = 0; i < kDurabilityNames.size(); ++i) {
    if (kDurabilityNames[i] == name) return static_cast<Durability>(i);
  }
  return std::nullopt;
}

}  // namespace sluice
