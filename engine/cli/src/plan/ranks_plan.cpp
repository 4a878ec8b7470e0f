#include "plan/ranks_plan.hpp"

#include <json/value.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/training_config.hpp"
#include "plan/known_rates.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/offload/tier.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/rank_plan.hpp"
#include "sluice/plan/rates.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

// Rates of a host with 8 GPUs that are not given. Update: 200 GB/s of memory over the 28 bytes that
// an update of Adam reads and writes for a parameter.
constexpr double kNetworkBytes = 25e9;
constexpr double kDriveBytes = 6e9;
constexpr double kLinkBytes = 25e9;
constexpr double kFlops = 400e12;
constexpr double kUpdates = 7e9;

// The subject of the plan, the rates of the hardware, and one line for each assumption.
struct Question {
  config::TrainConfig config;
  config::ModelConfig model;
  plan::RankShape shape;
  std::map<std::uint64_t, plan::StepWork> work;  // of a rank, by the ranks of its host
  double network_bytes = 0;
  std::vector<std::string> assumptions;
};

config::TrainConfig assumed_config(const RanksArguments& ranks) {
  using Device = config::OffloadConfig::Device;
  config::TrainConfig config;
  config.micro_batch_size = 1;
  config.gradient_accumulation_steps = 1;
  config.bf16 = true;
  config.gradient_clipping = 1;
  config.zero.stage = 3;
  config.zero.offload_optimizer.device = ranks.drives > 0 ? Device::nvme : Device::cpu;
  config.zero.offload_param.device = Device::cpu;
  return config;
}

void describe_model(const RanksArguments& ranks, Question& question) {
  const config::ModelConfig& model = question.model;
  question.assumptions.push_back(
      "model: " + format_count(question.shape.parameters) + " parameters; " +
      std::to_string(model.n_layer) + " blocks of width " + std::to_string(model.n_embd) +
      ", sequences of " + std::to_string(model.n_positions) + " tokens, vocabulary " +
      std::to_string(model.vocab_size) +
      (ranks.parameters > 0 ? " (derived: a GPT of about " + format_count(ranks.parameters) + ")"
                            : ""));
}

void describe_run(bool has_config, Question& question) {
  const plan::RankShape& shape = question.shape;
  const auto tier = [](offload::Tier of) { return std::string(offload::name_of(of)); };
  question.assumptions.push_back(
      std::string(has_config ? "configuration: "
                             : "no --config, assumed: AdamW, bf16, clipping; ") +
      "stage " + std::to_string(shape.stage) + ", weights on " + tier(shape.weights) +
      ", states on " + tier(shape.states) + " (" + std::to_string(shape.format.element_bytes()) +
      " bytes a parameter), micro-batch " + std::to_string(shape.micro_batch) + " x " +
      std::to_string(shape.micro_batches) + " of each rank");
  question.assumptions.push_back(
      std::string("formulas: units of one size, one pass a step, ") +
      (shape.recompute ? "forward again in backward" : "activations kept, and not counted") +
      (shape.overlap ? ", links overlap" : ", links do not overlap") +
      "; no padding, no workspace of kernels");
}

// The rate that is given, else the assumed one; a line says which.
double rate_or(double given, double assumed, const std::string& what, const std::string& unit,
               double shown_over, std::vector<std::string>& lines) {
  const double value = given > 0 ? given : assumed;
  lines.push_back(what + ": " + format_number("%.4g", value / shown_over) + " " + unit +
                  (given > 0 ? " (given)" : " (assumed)"));
  return value;
}

std::uint64_t ranks_of_host(const RanksArguments& arguments, std::uint64_t ranks) {
  return std::min(ranks, arguments.ranks_per_host);
}
std::set<std::uint64_t> ranks_of_hosts(const RanksArguments& arguments) {
  std::set<std::uint64_t> counts;
  for (const std::uint64_t ranks : arguments.ranks) counts.insert(ranks_of_host(arguments, ranks));
  return counts;
}

void assume_rates(const RanksArguments& ranks, Question& question) {
  std::vector<std::string>& lines = question.assumptions;
  plan::RankRates rates;
  rates.flops_per_second =
      rate_or(ranks.flops, kFlops, "compute of a rank", "teraflop/s", 1e12, lines);
  rates.copy_bytes_per_second =
      rate_or(ranks.link_bytes, kLinkBytes, "host link of a rank", "GB/s", 1e9, lines);
  const std::uint64_t drives = std::max<std::uint64_t>(ranks.drives, 1);
  rates.drive_bytes_per_second =
      static_cast<double>(drives) *
      rate_or(ranks.drive_bytes, kDriveBytes,
              "drives of a host: " + std::to_string(drives) +
                  (ranks.drives > 0 ? " (given)" : " (assumed)") + ", each",
              "GB/s", 1e9, lines);
  rates.update_elements_per_second =
      rate_or(ranks.updates, kUpdates, "update by a host", "billion parameters/s", 1e9, lines);
  for (const std::uint64_t on_host : ranks_of_hosts(ranks))
    question.work[on_host] = plan::step_work(question.shape, rates);
}

// Work by rates that --probe measured on this machine.
class MeasuredWork {
 public:
  MeasuredWork(const PlanArguments& arguments, Question& question, Session& session)
      : arguments_(arguments),
        question_(question),
        session_(session),
        host_(plan::probe_machine(question.config)),
        rates_(arguments.request.rates_path) {}

  // Returns false when nothing was measured for the configuration. Throws DoesNotFit when one rank
  // alone does not fit, and what KnownRates::measure() throws.
  bool find() {
    for (const std::uint64_t on_host : ranks_of_hosts(arguments_.ranks)) {
      if (by_threads_of(on_host)) continue;
      if (on_host == 1 || !by_threads_of(1)) return false;
      question_.work[on_host] = question_.work.at(1);
      say(on_host, "in turns on the cores of one (--probe measures with the threads of each)");
    }
    question_.assumptions.emplace_back(
        "compute, update, copies, drive: measured on this machine, by the plan of one rank");
    for (std::string& line : lines_) question_.assumptions.push_back(std::move(line));
    return true;
  }

 private:
  // Ranks without GPUs have their parts of the host's cores. Measures first, with --probe.
  bool by_threads_of(std::uint64_t on_host) {
    if (question_.work.count(on_host) > 0) return true;
    plan::MachineFacts machine = host_;
    if (!machine.device.gpu) machine.cores = std::max(host_.cores / static_cast<int>(on_host), 1);
    const auto plan_with = [&](const plan::FindRates& rates) {
      return plan::make_plan(question_.config, question_.model, arguments_.request.placement,
                             machine, rates);
    };
    if (arguments_.probe) {
      const plan::Plan usual = plan_with({});
      if (measured_.insert(plan::rates_key(usual)).second) rates_.measure(usual, session_);
    }
    const plan::Plan plan = plan_with(rates_.finder());
    const std::optional<plan::SavedRates> saved = rates_.find(plan);
    if (!saved) return false;
    question_.work[on_host] = plan::step_work(plan, saved->rates, host_.cores);
    const int threads = plan.schedule.threads.compute;
    say(on_host, "with " + std::to_string(threads) + (threads == 1 ? " thread" : " threads") +
                     ", measured " + saved->measured);
    return true;
  }

  void say(std::uint64_t on_host, const std::string& how) {
    lines_.push_back("  " + std::to_string(on_host) + (on_host == 1 ? " rank" : " ranks") +
                     " on a host: " + how);
  }

  const PlanArguments& arguments_;
  Question& question_;
  Session& session_;
  const plan::MachineFacts host_;
  KnownRates rates_;
  std::set<std::string> measured_;  // keys that this command has measured
  std::vector<std::string> lines_;
};

bool gives_hardware(const RanksArguments& ranks) {
  return ranks.flops > 0 || ranks.link_bytes > 0 || ranks.drive_bytes > 0 || ranks.updates > 0 ||
         ranks.drives > 0;
}

// Takes measured rates. Returns false without them, and when flags or a missing configuration ask
// for other hardware.
bool measured_work(const PlanArguments& arguments, Question& question, Session& session) {
  if (gives_hardware(arguments.ranks) || arguments.request.config_path.empty() ||
      arguments.ranks.parameters > 0)
    return false;
  try {
    return MeasuredWork(arguments, question, session).find();
  } catch (const DoesNotFit&) {
    if (arguments.probe) throw;
    return false;  // one rank holds less than many
  }
}

Question ask(const PlanArguments& arguments, Session& session) {
  const RanksArguments& ranks = arguments.ranks;
  const train::TrainRequest& request = arguments.request;
  const bool has_config = !request.config_path.empty();
  Question question;
  question.config =
      has_config ? load_training_config(request.config_path, {.tuned_paths = request.tuned_paths,
                                                              .settings = request.settings})
                 : assumed_config(ranks);
  SLUICE_CHECK(has_config || request.settings.empty(),
               "flags that set values of the configuration need --config");
  question.model = ranks.parameters > 0 ? plan::model_of_size(ranks.parameters)
                                        : config::load_model_config(request.model_path);
  question.shape = plan::rank_shape(question.config, question.model);
  if (request.placement == plan::Placement::resident)
    question.shape.weights = question.shape.states = offload::Tier::device;
  describe_model(ranks, question);
  describe_run(has_config, question);
  if (!measured_work(arguments, question, session)) assume_rates(ranks, question);
  question.network_bytes =
      rate_or(ranks.network_bytes, kNetworkBytes, "network of a rank, each direction", "GB/s", 1e9,
              question.assumptions);
  question.assumptions.push_back("a host has up to " + std::to_string(ranks.ranks_per_host) +
                                 " ranks, which share its memory, drives and processors");
  return question;
}

// One number of ranks.
struct Answer {
  std::uint64_t ranks = 1;
  std::uint64_t on_host = 1;
  plan::RankBytes bytes;
  plan::RankPrediction prediction;
  std::string fits;  // empty: no memory was given to compare with
};

Answer answer(const Question& question, const RanksArguments& arguments, std::uint64_t ranks) {
  Answer answer;
  answer.ranks = ranks;
  answer.on_host = ranks_of_host(arguments, ranks);
  answer.bytes = plan::rank_bytes(question.shape, ranks);
  answer.prediction = plan::predict_ranks(
      question.work.at(answer.on_host), {ranks, arguments.ranks_per_host, question.network_bytes});
  const std::uint64_t host_bytes = checked_mul(answer.bytes.host_bytes, answer.on_host);
  const auto shortage = [](const char* tier, std::uint64_t need, std::uint64_t have) {
    return need > have ? std::string(tier) + " short by " + format_bytes(need - have) : "";
  };
  if (arguments.gpu_memory_bytes > 0)
    answer.fits = shortage("device", answer.bytes.device_bytes, arguments.gpu_memory_bytes);
  if (arguments.host_memory_bytes > 0) {
    const std::string host = shortage("host", host_bytes, arguments.host_memory_bytes);
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
                    format_bytes(checked_mul(bytes.host_bytes, one.on_host)),
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
  const Question question = ask(arguments, session);
  std::vector<Answer> answers;
  Json::Value object(Json::objectValue);
  object["parameters"] = static_cast<Json::UInt64>(question.shape.parameters);
  object["stage"] = question.shape.stage;
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
