#include "placement/preferences.hpp"

#include <utility>

namespace sluice::plan {

namespace {

constexpr std::pair<bool Preferences::*, const char*> kPreferences[] = {
    {&Preferences::weights_leave_first, "weights leave host memory before optimizer states"},
    {&Preferences::inputs_in_host, "inputs of units wait in host memory"},
    {&Preferences::retain_weights_first, "weights stay on the device before activations do"},
    {&Preferences::read_ahead_first, "reading ahead gets spare host memory before gradients"},
    {&Preferences::cache_last, "the cache gets spare host memory last"},
};

}  // namespace

std::vector<Preferences> neighbours(const Preferences& preferences) {
  std::vector<Preferences> all;
  for (const auto& [member, text] : kPreferences) {
    all.push_back(preferences);
    all.back().*member = !(preferences.*member);
  }
  return all;
}

std::string text_of(const Preferences& preferences) {
  std::string all;
  for (const auto& [member, text] : kPreferences) {
    if (preferences.*member) all += (all.empty() ? "" : "; ") + std::string(text);
  }
  return all;
}

}  // namespace sluice::plan
