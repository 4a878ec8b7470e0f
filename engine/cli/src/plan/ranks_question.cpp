#include "plan/ranks_question.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/training_config.hpp"
#include "files/input_file.hpp"
#include "plan/known_rates.hpp"
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

void describe_model(const RanksArguments& ranks, RanksQuestion& question) {
  const config::ModelConfig& model = question.model;
  question.assumptions.push_back(
      "model: " + format_count(question.shape().parameters) + " parameters; " +
      std::to_string(model.n_layer) + " blocks of width " + std::to_string(model.n_embd) +
      ", sequences of " + std::to_string(model.n_positions) + " tokens, vocabulary " +
      std::to_string(model.vocab_size) +
      (ranks.parameters > 0 ? " (derived: a GPT of about " + format_count(ranks.parameters) + ")"
                            : ""));
}

// "micro-batch 2 x 4 of each rank", or "micro-batch 2 x 8 (8 ranks), 2 x 1 (64 ranks)".
std::string batch_of_ranks(const RanksQuestion& question) {
  std::set<std::string> batches;
  std::string of_each;
  for (const auto& [ranks, shape] : question.shapes) {
    const std::string batch =
        std::to_string(shape.micro_batch) + " x " + std::to_string(shape.micro_batches);
    batches.insert(batch);
    of_each += (of_each.empty() ? "" : ", ") + batch + " (" + counted(ranks, "rank") + ")";
  }
  return "micro-batch " + (batches.size() == 1 ? *batches.begin() + " of each rank" : of_each);
}

void describe_run(bool has_config, RanksQuestion& question) {
  const plan::RankShape& shape = question.shape();
  const auto tier = [](offload::Tier of) { return std::string(offload::name_of(of)); };
  question.assumptions.push_back(
      std::string(has_config ? "configuration: "
                             : "no --config, assumed: AdamW, bf16, clipping; ") +
      "stage " + std::to_string(shape.stage) + ", weights on " + tier(shape.weights) +
      ", states on " + tier(shape.states) + " (" + std::to_string(plan::state_bytes(shape)) +
      " bytes a parameter), " + batch_of_ranks(question));
  const config::TrainConfig& config = question.configs.begin()->second;
  const auto leave_out = [&](bool is_set, const char* key) {
    if (is_set) question.assumptions.push_back(std::string("not counted: ") + key);
  };
  leave_out(config.zero.offload_optimizer.ratio < 1, "zero_optimization.offload_optimizer.ratio");
  leave_out(config.sluice.updates.speculative_bytes.value > 0, "sluice.speculative_bytes");
  leave_out(config.sluice.cache_bytes.value > 0, "sluice.cache_bytes");
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

void assume_rates(const RanksArguments& ranks, RanksQuestion& question) {
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
  for (const auto& [count, shape] : question.shapes)
    question.work[count] = plan::step_work(shape, rates);
}

// Work by rates that --probe measured on this machine.
class MeasuredWork {
 public:
  MeasuredWork(const PlanArguments& arguments, RanksQuestion& question, Session& session)
      : arguments_(arguments),
        question_(question),
        session_(session),
        host_(plan::probe_machine(question.configs.begin()->second)),
        rates_(arguments.request.rates_path) {}

  // Returns false, and why, when nothing was measured for the configuration. Throws DoesNotFit when
  // one rank alone does not fit, and what KnownRates::measure() throws.
  bool find(std::string& why_not) {
    std::map<std::uint64_t, plan::StepWork> found;
    for (const auto& [ranks, config] : question_.configs) {
      const std::uint64_t on_host = ranks_of_host(arguments_.ranks, ranks);
      std::optional<plan::StepWork> work = work_of(config, on_host);
      if (!work && on_host > 1) {
        work = work_of(config, 1);
        if (work)
          how_[on_host] =
              "in turns on the cores of one (--probe measures with the threads of each)";
      }
      if (!work) {
        why_not = "no rates of this machine are stored for " + ranks_on_host(on_host) +
                  " and this configuration: --probe measures them";
        return false;
      }
      found[ranks] = *work;
    }
    question_.work = std::move(found);
    question_.assumptions.emplace_back(
        "compute, update, copies, drive: measured on this machine, by the plan of one rank");
    for (const auto& [on_host, how] : how_)
      question_.assumptions.push_back("  " + ranks_on_host(on_host) + ": " + how);
    return true;
  }

 private:
  static std::string ranks_on_host(std::uint64_t count) {
    return counted(count, "rank") + " on a host";
  }
  // Ranks without GPUs have their parts of the host's cores. Measures first, with --probe.
  std::optional<plan::StepWork> work_of(const config::TrainConfig& config, std::uint64_t on_host) {
    plan::MachineFacts machine = host_;
    if (!machine.device.gpu) machine.cores = std::max(host_.cores / static_cast<int>(on_host), 1);
    config::TrainConfig alone = config;
    alone.world_size = 1;
    alone.train_batch_size = alone.micro_batch_size * alone.gradient_accumulation_steps;
    const auto plan_with = [&](const plan::FindRates& rates) {
      return plan::make_plan(alone, question_.model, arguments_.request.placement, machine, rates);
    };
    if (arguments_.probe) {
      const plan::Plan usual = plan_with({});
      if (measured_.insert(plan::rates_key(usual)).second) rates_.measure(usual, session_);
    }
    const plan::Plan plan = plan_with(rates_.finder());
    const std::optional<plan::SavedRates> saved = rates_.find(plan);
    if (!saved) return std::nullopt;
    const int threads = plan.schedule.threads.compute;
    how_[on_host] = "with " + counted(threads, "thread") + ", measured " + saved->measured;
    return plan::step_work(plan, saved->rates, host_.cores);
  }

  const PlanArguments& arguments_;
  RanksQuestion& question_;
  Session& session_;
  const plan::MachineFacts host_;
  KnownRates rates_;
  std::set<std::string> measured_;            // keys that this command has measured
  std::map<std::uint64_t, std::string> how_;  // by the ranks of a host
};

bool gives_hardware(const RanksArguments& ranks) {
  return ranks.flops > 0 || ranks.link_bytes > 0 || ranks.drive_bytes > 0 || ranks.updates > 0 ||
         ranks.drives > 0;
}

// Takes measured rates. Returns false without them, and when flags or a missing configuration ask
// for other hardware.
bool measured_work(const PlanArguments& arguments, RanksQuestion& question, Session& session) {
  if (gives_hardware(arguments.ranks) || arguments.request.config_path.empty() ||
      arguments.ranks.parameters > 0)
    return false;
  std::string why_not;
  try {
    if (MeasuredWork(arguments, question, session).find(why_not)) return true;
  } catch (const DoesNotFit&) {
    if (arguments.probe) throw;
    why_not = "one rank does not fit this machine, so its rates do not apply";
  }
  question.assumptions.push_back(why_not);
  return false;
}

void read_configs(const PlanArguments& arguments, RanksQuestion& question) {
  const train::TrainRequest& request = arguments.request;
  const std::vector<std::uint64_t>& counts = arguments.ranks.ranks;
  const std::string& path = request.config_path;
  SLUICE_CHECK(counts.size() == 1 || !is_pipe(path),
               path + ": a pipe can be read only once; several numbers of --ranks need a file");
  for (const std::uint64_t ranks : counts) {
    config::TrainConfig config =
        path.empty() ? assumed_config(arguments.ranks)
                     : load_training_config(path, {.world_size = static_cast<int>(ranks),
                                                   .tuned_paths = request.tuned_paths,
                                                   .settings = request.settings});
    plan::RankShape shape = plan::rank_shape(config, question.model);
    if (request.placement == plan::Placement::resident)
      shape.weights = shape.states = offload::Tier::device;
    question.shapes[ranks] = shape;
    question.configs[ranks] = std::move(config);
  }
}

}  // namespace

std::uint64_t ranks_of_host(const RanksArguments& arguments, std::uint64_t ranks) {
  return std::min(ranks, arguments.ranks_per_host);
}

RanksQuestion ask(const PlanArguments& arguments, Session& session) {
  const RanksArguments& ranks = arguments.ranks;
  const train::TrainRequest& request = arguments.request;
  const bool has_config = !request.config_path.empty();
  RanksQuestion question;
  SLUICE_CHECK(has_config || request.settings.empty(),
               "flags that set values of the configuration need --config");
  question.model = ranks.parameters > 0 ? plan::model_of_size(ranks.parameters)
                                        : config::load_model_config(request.model_path);
  read_configs(arguments, question);
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

}  // namespace sluice::cli
