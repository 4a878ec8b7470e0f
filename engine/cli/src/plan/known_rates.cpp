#include "plan/known_rates.hpp"

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <utility>

#include "process/signals.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/drive_rates.hpp"
#include "train/train_library_loader.hpp"

namespace sluice::cli {

void KnownRates::measure(const plan::Plan& plan, Session& session) {
  if (!path_.empty()) plan::check_rates_path(path_);
  for (const auto* directories : {&plan.directories.states, &plan.directories.scratch}) {
    if (!directories->empty() && !std::filesystem::is_directory(directories->front()))
      throw IoError(ENOENT, "swap directory", directories->front(), 0, 0,
                    "--probe measures its drive: create it first");
  }
  nvme::check_drive_rates(plan.swap_directories(), plan.config.aio.block_size);
  if (path_.empty())
    session.console().log(LogLevel::warn,
                          "the measured rates count for this plan alone and are not kept, because "
                          "HOME is not set: give --rates FILE to keep them");
  const StopSignals signals;
  plan::SavedRates saved;
  saved.rates = load_train_library().probe(
      plan,
      [&](const std::string& what, double done) {
        session.console().status("measuring " + what + " (" +
                                 std::to_string(static_cast<int>(100 * done)) + " %)");
      },
      signals.stop());
  session.console().status("");
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  saved.measured = text;
  const std::string key = plan::rates_key(plan);
  if (!path_.empty()) plan::save_rates(path_, key, saved);
  measured_[key] = std::move(saved);
}

std::optional<plan::SavedRates> KnownRates::find(const plan::Plan& plan) const {
  const std::string key = plan::rates_key(plan);
  const auto found = measured_.find(key);
  return found != measured_.end() ? std::optional(found->second) : plan::load_rates(path_, key);
}

plan::FindRates KnownRates::finder() const {
  return [this](const plan::Plan& plan) {
    const std::optional<plan::SavedRates> saved = find(plan);
    return saved ? std::optional(saved->rates) : std::nullopt;
  };
}

}  // namespace sluice::cli
