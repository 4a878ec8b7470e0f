#include "ranks/rank_calls.hpp"

#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"

namespace sluice::train {

namespace {

// The key that tells rows apart, on one line.
std::string key_of(const zero::LoggedCalls& calls) {
  return std::string(name_of(calls.operation)) + "\t" + calls.label + "\t" +
         std::to_string(calls.message_bytes);
}

// A line for each row: its key, and the seconds of a call.
std::string text_of(const std::vector<zero::LoggedCalls>& calls) {
  std::string text;
  for (const zero::LoggedCalls& each : calls)
    text += key_of(each) + format_number("\t%.17g\n", each.mean_seconds());
  return text;
}

}  // namespace

std::unique_ptr<zero::CallLog> make_call_log(const config::TrainConfig& config) {
  const config::CommsLoggerConfig& asked = config.monitors.comms_logger;
  if (!asked.enabled || config.world_size == 1) return nullptr;
  if (!asked.prof_all && asked.prof_ops.empty()) return nullptr;
  zero::CallLogOptions options{
      .ranks = config.world_size, .operations = {}, .by_label = asked.debug, .print = {}};
  if (!asked.prof_all) {
    for (const std::string& name : asked.prof_ops)
      options.operations.push_back(zero::parse_operation(name));
  }
  if (asked.verbose && config.rank == 0)
    options.print = [](const std::string& line) { log(LogLevel::info, line); };
  return std::make_unique<zero::CallLog>(std::move(options));
}

std::vector<ReportedCalls> gather_calls(RankGroup& ranks, const zero::CallLog& log) {
  const std::vector<zero::LoggedCalls> own = log.calls();
  std::map<std::string, std::vector<double>> seconds;  // by key
  for (const std::string& text : ranks.exchange(text_of(own), "the calls of the report")) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t tab = line.rfind('\t');
      seconds[line.substr(0, tab)].push_back(std::stod(line.substr(tab + 1)));
    }
  }
  std::vector<ReportedCalls> all;
  for (const zero::LoggedCalls& each : own) {
    const zero::CallBandwidth bandwidth =
        zero::bandwidth_of(each.operation, each.message_bytes, each.mean_seconds(), ranks.size());
    all.push_back({std::string(name_of(each.operation)), each.label, each.message_bytes, each.calls,
                   each.seconds, seconds[key_of(each)], 8e-9 * bandwidth.algorithm,
                   8e-9 * bandwidth.bus});
  }
  return all;
}

}  // namespace sluice::train
