#include "placement/preferences.hpp"

#include <utility>

namespace sluice::plan {

namespace {

constexpr std::pair<bool Preferences::*, const char*> kPreferences[] = {
    {&Preferences::weights_leave_first, "weights leave host memory before optimizer states"},
    {&Preferences::inputs_in_host, "inputs of units wait in host memory"},
    {&Preferences::retain_weights_first,
     "weights rather than activations are kept from forward to backward"},
    {&Preferences::read_ahead_first, "spare host memory is for reading ahead before gradients"},
    {&Preferences::cache_last, "the cache gets what gradients and reading ahead leave"},
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
