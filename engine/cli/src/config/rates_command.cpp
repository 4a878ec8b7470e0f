// config rates: the learning rates of a run, before it is begun.

#include <json/value.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "command/commands.hpp"
#include "config/training_config.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "terminal/ascii_plot.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr std::int64_t kDefaultSteps = 100;
constexpr std::int64_t kMostSteps = 10'000'000;  // 80 MB of rates
constexpr std::size_t kRows = 20;

// The steps that the schedule itself names, or some.
std::int64_t steps_of(const config::SchedulerConfig& scheduler) {
  const auto length = [](const auto& schedule) -> std::int64_t {
    if constexpr (requires { schedule.total_num_steps; }) return schedule.total_num_steps;
    return kDefaultSteps;
  };
  return std::min(std::visit(length, scheduler), kMostSteps);
}

std::string name_of(const config::SchedulerConfig& scheduler) {
  const auto name = [](const auto& schedule) -> std::string {
    using Schedule = std::remove_cvref_t<decltype(schedule)>;
    if constexpr (std::is_same_v<Schedule, std::monostate>) {
      return "none: the rate is constant";
    } else {
      return std::string(Schedule::kName);
    }
  };
  return std::visit(name, scheduler);
}

bool cycles_betas(const config::SchedulerConfig& scheduler) {
  const auto* cycle = std::get_if<config::OneCycle>(&scheduler);
  return cycle != nullptr && cycle->cycle_momentum;
}

// The rates in a unit that the labels of the chart have room for, as "1e-4".
std::string chart(const std::vector<double>& rates, const TerminalFacts& terminal) {
  const double highest = *std::max_element(rates.begin(), rates.end());
  if (!(highest > 0) || !std::isfinite(highest)) return "";
  const int power = static_cast<int>(std::floor(std::log10(highest)));
  const std::string unit = power == 0 ? "" : ", in 1e" + std::to_string(power);
  PlotSeries series{"learning rate" + unit, PlotSeries::Style::line, {}};
  for (std::size_t i = 0; i < rates.size(); ++i)
    series.points.push_back({static_cast<double>(i + 1), rates[i] / std::pow(10.0, power)});
  PlotOptions options;
  options.columns = std::clamp(terminal.columns, 40, 100);
  options.unicode = terminal.unicode;
  options.x_label = "step";
  return plot({series}, options);
}

// At most kRows steps, evenly spaced, the last one among them.
std::string table(const config::TrainConfig& config, const std::vector<double>& rates) {
  const bool betas = cycles_betas(config.scheduler);
  std::vector<std::vector<std::string>> rows = {{"step", "learning rate"}};
  if (betas) rows[0].push_back("beta1");
  const std::size_t count = std::min(rates.size(), kRows);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = count < 2 ? 0 : i * (rates.size() - 1) / (count - 1);
    const auto step = static_cast<std::int64_t>(at + 1);
    rows.push_back({format_count(at + 1), format_number("%.6g", rates[at])});
    if (betas)
      rows.back().push_back(format_number("%.6g", config::betas_of_step(config, step).beta1));
  }
  return format_table(rows);
}

// Every bit of a value, as the shortest decimal that reads back equal. to_line() rounds.
void append(std::string& text, double value) {
  text += (text.ends_with('[') ? "" : ",");
  text += std::isfinite(value) ? shortest_number(value) : "null";
}

std::string json_of(const std::string& path, const config::TrainConfig& config,
                    const std::vector<double>& rates) {
  Json::Value names(Json::objectValue);
  names["file"] = path;
  names["scheduler"] = name_of(config.scheduler);
  std::string text = to_line(names);
  text.back() = ',';
  text += "\"rates\":[";
  for (const double rate : rates) append(text, rate);
  text += "]";
  if (cycles_betas(config.scheduler)) {
    text += ",\"betas\":[";
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const config::Betas betas = config::betas_of_step(config, static_cast<std::int64_t>(i + 1));
      text += i == 0 ? "[" : ",[";
      append(text, betas.beta1);
      append(text, betas.beta2);
      text += "]";
    }
    text += "]";
  }
  return text + "}";
}

}  // namespace

int run_config_rates(const ConfigRatesArguments& arguments, Session& session) {
  require_config(arguments.path);
  const config::TrainConfig config =
      load_training_config(arguments.path, {.settings = arguments.settings});
  const std::int64_t steps = arguments.steps.value_or(steps_of(config.scheduler));
  SLUICE_CHECK(steps <= kMostSteps, "--steps: expected at most " +
                                        format_count(static_cast<std::uint64_t>(kMostSteps)) +
                                        " rates to show, found " + std::to_string(steps));
  config::LearningRates schedule(config);
  std::vector<double> rates(static_cast<std::size_t>(steps));
  for (std::size_t i = 0; i < rates.size(); ++i)
    rates[i] = schedule.at(static_cast<std::int64_t>(i + 1));
  Console& console = session.console();
  console.print("scheduler: " + name_of(config.scheduler) + "\n");
  console.print(chart(rates, console.terminal()));
  console.print(table(config, rates));
  if (rates.size() > kRows) console.print("--json has the rate of every step\n");
  if (session.json()) session.emit_text(json_of(arguments.path, config, rates));
  return kExitDone;
}

}  // namespace sluice::cli
