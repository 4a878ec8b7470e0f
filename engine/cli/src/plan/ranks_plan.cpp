#include "plan/ranks_plan.hpp"

#include <json/value.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plan/ranks_question.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/rank_plan.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

// One number of ranks.
struct Answer {
  std::uint64_t ranks = 1;
  std::uint64_t on_host = 1;
  plan::RankBytes bytes;
  plan::RankPrediction prediction;
  std::uint64_t memory_bytes = 0;  // of a host
  std::string fits;                // empty: no memory was given to compare with
};

Answer answer(const RanksQuestion& question, const RanksArguments& arguments, std::uint64_t ranks) {
  Answer answer;
  answer.ranks = ranks;
  answer.on_host = ranks_of_host(arguments, ranks);
  answer.bytes = plan::rank_bytes(question.shapes.at(ranks), ranks);
  answer.prediction = plan::predict_ranks(
      question.work.at(ranks), {ranks, arguments.ranks_per_host, question.network_bytes});
  // Without a GPU, the device is host memory too.
  const bool on_host = question.work.at(ranks).shares_cores;
  answer.memory_bytes = checked_mul(
      answer.bytes.host_bytes + (on_host ? answer.bytes.device_bytes : 0), answer.on_host);
  const auto shortage = [](const char* tier, std::uint64_t need, std::uint64_t have) {
    return need > have ? std::string(tier) + " short by " + format_bytes(need - have) : "";
  };
  if (arguments.gpu_memory_bytes > 0)
    answer.fits = shortage("device", answer.bytes.device_bytes, arguments.gpu_memory_bytes);
  if (arguments.host_memory_bytes > 0) {
    const std::string host = shortage("host", answer.memory_bytes, arguments.host_memory_bytes);
    answer.fits += (answer.fits.empty() || host.empty() ? "" : ", ") + host;
  }
  const bool compared = arguments.gpu_memory_bytes > 0 || arguments.host_memory_bytes > 0;
  if (compared && answer.fits.empty()) answer.fits = "yes";
  return answer;
}

using Rows = std::vector<std::vector<std::string>>;

// A title and a row of each answer. Four tables, since one of them all is wider than a terminal.
std::string table(const std::string& title, Rows rows, const std::vector<Answer>& answers,
                  const std::function<std::vector<std::string>(const Answer&)>& cells) {
  for (const Answer& one : answers) {
    rows.push_back({std::to_string(one.ranks)});
    for (std::string& cell : cells(one)) rows.back().push_back(std::move(cell));
  }
  return "\n" + title + "\n" + format_table(rows);
}

std::string tables(const std::vector<Answer>& answers) {
  const auto seconds = [](double value) { return format_number("%.3f", value); };
  const auto of_rank = [](const Answer& one) -> std::vector<std::string> {
    const plan::RankBytes& bytes = one.bytes;
    return {
        format_bytes(bytes.weights), format_bytes(bytes.device_gradients + bytes.host_gradients),
        format_bytes(bytes.states),  format_bytes(bytes.gathered),
        format_bytes(bytes.inputs),  format_bytes(bytes.device_bytes)};
  };
  const auto of_host = [](const Answer& one) -> std::vector<std::string> {
    return {std::to_string(one.on_host), format_bytes(one.memory_bytes),
            format_bytes(checked_mul(one.bytes.nvme_bytes, one.on_host)), one.fits};
  };
  const auto of_links = [&](const Answer& one) -> std::vector<std::string> {
    const plan::RankPrediction& p = one.prediction;
    return {seconds(p.compute_seconds), seconds(p.gather_seconds), seconds(p.reduce_seconds),
            seconds(p.copy_seconds),    seconds(p.drive_seconds),  seconds(p.update_seconds)};
  };
  const auto of_step = [&](const Answer& one) -> std::vector<std::string> {
    const plan::RankPrediction& p = one.prediction;
    return {seconds(p.step_seconds),
            format_count(static_cast<std::uint64_t>(std::llround(p.tokens_per_second))),
            p.bound_by};
  };
  return table("bytes of a rank",
               {{"ranks", "weights", "gradients", "states", "gathered", "inputs", "device"}},
               answers, of_rank) +
         table("bytes of a host", {{"ranks", "its ranks", "memory", "drives", "fits"}}, answers,
               of_host) +
         table("seconds of each link in a step",
               {{"ranks", "compute", "all-gather", "reduce-scatter", "copies", "drive", "update"}},
               answers, of_links) +
         table("a step", {{"ranks", "seconds", "tokens/s", "bound by"}}, answers, of_step);
}

Json::Value to_json(const Answer& one) {
  const plan::RankBytes& bytes = one.bytes;
  const plan::RankPrediction& p = one.prediction;
  Json::Value object(Json::objectValue);
  object["ranks"] = static_cast<Json::UInt64>(one.ranks);
  object["ranks_on_host"] = static_cast<Json::UInt64>(one.on_host);
  object["host_memory_bytes"] = static_cast<Json::UInt64>(one.memory_bytes);
  const std::pair<const char*, std::uint64_t> counts[] = {
      {"weights", bytes.weights},
      {"device_gradients", bytes.device_gradients},
      {"host_gradients", bytes.host_gradients},
      {"states", bytes.states},
      {"gathered", bytes.gathered},
      {"inputs", bytes.inputs},
      {"device", bytes.device_bytes},
      {"host", bytes.host_bytes},
      {"nvme", bytes.nvme_bytes}};
  for (const auto& [name, count] : counts)
    object["rank_bytes"][name] = static_cast<Json::UInt64>(count);
  const std::pair<const char*, double> links[] = {
      {"compute", p.compute_seconds},       {"all_gather", p.gather_seconds},
      {"reduce_scatter", p.reduce_seconds}, {"copies", p.copy_seconds},
      {"drive", p.drive_seconds},           {"update", p.update_seconds}};
  for (const auto& [name, seconds] : links) object["seconds"][name] = seconds;
  object["step_seconds"] = p.step_seconds;
  object["tokens_per_second"] = p.tokens_per_second;
  object["bound_by"] = p.bound_by;
  object["fits"] = one.fits.empty() ? Json::Value() : Json::Value(one.fits == "yes");
  return object;
}

}  // namespace

int run_ranks_plan(const PlanArguments& arguments, Session& session) {
  const RanksQuestion question = ask(arguments, session);
  std::vector<Answer> answers;
  Json::Value object(Json::objectValue);
  object["parameters"] = static_cast<Json::UInt64>(question.shape().parameters);
  object["stage"] = question.shape().stage;
  for (const std::string& line : question.assumptions) object["assumptions"].append(line);
  for (const std::uint64_t ranks : arguments.ranks.ranks) {
    answers.push_back(answer(question, arguments.ranks, ranks));
    object["plans"].append(to_json(answers.back()));
  }
  Console& console = session.console();
  for (const std::string& line : question.assumptions) console.print(line);
  console.print(tables(answers));
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
