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
    {&Preferences::gradients_in_host, "gradients leave the GPU during backward"},
};

// Other passes of the step: more or fewer of them, or another last one. On a GPU only: elsewhere
// the step is one pass, since gradients that passes sum take the memory of the device.
std::vector<PassSizes> other_passes(const Plan& plan) {
  if (!plan.device.gpu || plan.own_loop() || plan.config.sluice.passes.each) return {};
  const auto all = static_cast<std::size_t>(plan.config.gradient_accumulation_steps);
  const PassSizes& now = plan.schedule.passes;
  std::vector<PassSizes> others;
  // A last pass that has all micro-batches is the only one, which has them saved or computed again.
  if (plan.config.sluice.activations != config::Activations::keep && now.last + now.each < all)
    others.push_back({now.each, now.last + now.each});
  if (now.last > now.each) others.push_back({now.each, now.last - now.each});
  for (std::size_t each = 1; each <= all; ++each)
    if (all % each == 0 && each != now.each) others.push_back({each, each});
  return others;
}

}  // namespace

std::vector<Preferences> neighbours(const Preferences& preferences, const Plan& plan) {
  std::vector<Preferences> all;
  for (const auto& [member, text] : kPreferences) {
    if (member == &Preferences::gradients_in_host && !plan.device.gpu) continue;
    all.push_back(preferences);
    all.back().*member = !(preferences.*member);
  }
  for (const PassSizes& passes : other_passes(plan)) {
    all.push_back(preferences);
    all.back().passes = passes;
  }
  return all;
}

std::string text_of(const Preferences& preferences) {
  std::string all;
  for (const auto& [member, text] : kPreferences) {
    if (preferences.*member) all += (all.empty() ? "" : "; ") + std::string(text);
  }
  if (preferences.passes) {
    const auto& [each, last] = *preferences.passes;
    all += (all.empty() ? "" : "; ") + std::to_string(each) +
           (each == 1 ? " micro-batch a pass" : " micro-batches a pass") +
           (last > each ? ", " + std::to_string(last) + " in the last one" : "");
  }
  return all;
}

}  // namespace sluice::plan
