#include "search/refusal.hpp"

#include "sluice/base/bytes.hpp"
#include "sluice/plan/plan_text.hpp"

namespace sluice::plan {

std::vector<std::string> shortfall_lines(const Plan& plan, const Shortfall& shortfall) {
  std::vector<std::string> lines;
  if (shortfall.device_bytes > 0) {
    lines.push_back("the device tier is short by " + format_bytes(shortfall.device_bytes) +
                    " (budget " + format_bytes(*plan.budget.device_bytes) + ")");
  }
  if (shortfall.host_bytes > 0) {
    lines.push_back("the host tier is short by " + format_bytes(shortfall.host_bytes) +
                    " (budget " + format_bytes(*plan.budget.host_bytes) + ")");
  }
  if (shortfall.no_directory) {
    lines.push_back(
        "bytes beyond the host budget would go to NVMe, but the configuration names no nvme_path");
  }
  return lines;
}

std::string refusal(const Plan& plan, const std::vector<std::string>& reasons,
                    const std::vector<std::string>& changes) {
  std::string text = "the run does not fit\n\n" + plan_table(plan) + "\n";
  for (const std::string& reason : reasons) text += "  " + reason + "\n";
  text += changes.empty() ? "\nno single change would fit: use a smaller model or a larger machine"
                          : "\nchanges that would fit, each alone:\n";
  for (std::size_t i = 0; i < changes.size(); ++i) {
    text += "  " + std::to_string(i + 1) + ". " + changes[i] + (i + 1 < changes.size() ? "\n" : "");
  }
  return text;
}

std::vector<std::string> downgrades(const Plan& plan) {
  const auto is_cut = [](const std::string& choice) {  // less than a key asked for
    return choice.ends_with("no more room") &&
           (choice.starts_with("cache: ") || choice.starts_with("ratio: ") ||
            choice.starts_with("speculative_bytes: ") || choice.starts_with("checkpoint_bytes: "));
  };
  const std::string refuse = "\"strict\": true does not allow: ";
  std::vector<std::string> lines;
  for (const std::string& choice : plan.choices) {
    if (choice.starts_with("weights: ") || choice.starts_with("optimizer states: ") ||
        choice.starts_with("no prefetch") || is_cut(choice)) {
      lines.push_back(refuse + choice);
    }
  }
  return lines;
}

}  // namespace sluice::plan
