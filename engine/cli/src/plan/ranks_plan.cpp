#include "plan/ranks_plan.hpp"

#include <json/value.h>

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

std::string bytes_table(const std::vector<Answer>& answers) {
  std::vector<std::vector<std::string>> rows = {{"ranks", "weights", "gradients", "states",
                                                 "gathered", "inputs", "device of a rank",
                                                 "memory of a host", "drives of a host", "fits"}};
  for (const Answer& one : answers) {
    const plan::RankBytes& bytes = one.bytes;
    rows.push_back({std::to_string(one.ranks), format_bytes(bytes.weights),
                    format_bytes(bytes.device_gradients + bytes.host_gradients),
                    format_bytes(bytes.states), format_bytes(bytes.gathered),
                    format_bytes(bytes.inputs), format_bytes(bytes.device_bytes),
                    format_bytes(one.memory_bytes),
                    format_bytes(checked_mul(bytes.nvme_bytes, one.on_host)), one.fits});
  }
  return "bytes of a rank, then of a tier\n" + format_table(rows);
}

std::string seconds_table(const std::vector<Answer>& answers) {
  std::vector<std::vector<std::string>> rows = {{"ranks", "compute", "all-gather", "reduce-scatter",
                                                 "copies", "drive", "update", "step", "tokens/s",
                                                 "bound by"}};
  const auto seconds = [](double value) { return format_number("%.3f", value); };
  for (const Answer& one : answers) {
    const plan::RankPrediction& p = one.prediction;
    rows.push_back({std::to_string(one.ranks), seconds(p.compute_seconds),
                    seconds(p.gather_seconds), seconds(p.reduce_seconds), seconds(p.copy_seconds),
                    seconds(p.drive_seconds), seconds(p.update_seconds), seconds(p.step_seconds),
                    format_number("%.0f", p.tokens_per_second), p.bound_by});
  }
  return "seconds of a step, by links\n" + format_table(rows);
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
  console.print("\n" + bytes_table(answers));
  console.print("\n" + seconds_table(answers));
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
