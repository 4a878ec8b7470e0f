#include "run/run_settings.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "record/monitors.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/lr_schedule.hpp"

namespace sluice::train {

namespace {

constexpr const char* kEpochBatch = "sequences of a step in epochs";
constexpr const char* kGroups = "parameter groups";

std::string nine_digits(double value) {
  return format_number("%.9g", value);
}

// The optimizer's values, without its rate.
std::string optimizer_text(const config::OptimizerConfig& optimizer) {
  std::string text(config::name_of(optimizer.type));
  if (optimizer.reads("betas"))
    text += ", betas " + nine_digits(optimizer.beta1) + " and " + nine_digits(optimizer.beta2);
  if (optimizer.reads("eps")) text += ", eps " + nine_digits(optimizer.eps);
  if (optimizer.reads("momentum")) {
    text += ", momentum " + nine_digits(optimizer.momentum) + ", dampening " +
            nine_digits(optimizer.dampening) + (optimizer.nesterov ? ", nesterov" : "");
  }
  text += ", weight decay " + nine_digits(optimizer.weight_decay);
  if (optimizer.lr_decay > 0) text += ", rate decay " + nine_digits(optimizer.lr_decay);
  return text + (optimizer.bias_correction ? "" : ", no bias correction") +
         (optimizer.amsgrad ? ", amsgrad" : "") + (optimizer.maximize ? ", maximize" : "");
}

std::string groups_text(const models::ParamGroups& groups) {
  if (!groups.is_divided()) return "one of all parameters";
  std::string text;
  for (const models::ParamGroup& group : groups.groups) {
    text += (text.empty() ? "" : "; ") + group.name + ": rate " + nine_digits(group.optimizer.lr) +
            ", " + optimizer_text(group.optimizer);
  }
  return text;
}

constexpr std::array<std::int64_t, 6> kRatedUpdates = {1, 10, 100, 1000, 10'000, 100'000};
constexpr const char* kAtUpdates = " at updates 1, 10, 100 ... 100,000";
constexpr const char* kWithBetas = ", with beta1 ";

// The schedule as its values at some updates.
std::string learning_rate_text(const config::TrainConfig& config) {
  std::string text, betas;
  bool cycles = false;
  for (const std::int64_t update : kRatedUpdates) {
    text += (text.empty() ? "" : ", ") + nine_digits(config::learning_rate(config, update));
    const double beta1 = config::betas_of_step(config, update).beta1;
    cycles = cycles || beta1 != config.optimizer.beta1;
    betas += (betas.empty() ? kWithBetas : ", ") + nine_digits(beta1);
  }
  return text + kAtUpdates + (cycles ? betas : "");
}

std::vector<std::string> values_in(const std::string& list) {
  std::vector<std::string> values;
  constexpr std::string_view kComma = ", ";
  for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + kComma.size()) {
    end = list.find(kComma, at);
    values.push_back(list.substr(at, end == std::string::npos ? end : end - at));
  }
  return values;
}

// The lists of a saved learning rate: its rates, and the betas where a schedule cycles them. Empty:
// none.
std::array<std::vector<std::string>, 2> lists_of(const std::string& text) {
  const std::size_t end = text.find(kAtUpdates);
  if (end == std::string::npos) return {};
  const std::size_t betas = text.find(kWithBetas, end);
  return {values_in(text.substr(0, end)),
          betas == std::string::npos
              ? std::vector<std::string>()
              : values_in(text.substr(betas + std::string_view(kWithBetas).size()))};
}

// Equal values stand once.
std::string joined(const std::vector<std::string>& values) {
  const bool is_constant =
      std::ranges::all_of(values, [&](const auto& value) { return value == values.front(); });
  return is_constant ? values.front() : join(values, ", ");
}

// Where the lists differ: "was 0.1; is 0.2 at update 100".
std::string list_difference(const std::vector<std::string>& before,
                            const std::vector<std::string>& now) {
  std::vector<std::string> was, is, updates;
  for (std::size_t i = 0; i < kRatedUpdates.size(); ++i) {
    if (before[i] == now[i]) continue;
    was.push_back(before[i]);
    is.push_back(now[i]);
    updates.push_back(format_count(static_cast<unsigned long long>(kRatedUpdates[i])));
  }
  if (was.empty()) return "";
  return "was " + joined(was) + "; is " + joined(is) +
         (updates.size() == 1 ? " at update " : " at updates ") + join(updates, ", ");
}

// "was 1; is 2". Learning rates are compared value by value.
std::string difference_of(const std::string& before, const std::string& now) {
  const auto was = lists_of(before);
  const auto is = lists_of(now);
  const auto are_alike = [](const auto& a, const auto& b) { return a.size() == b.size(); };
  if (was[0].size() != kRatedUpdates.size() || !std::ranges::equal(was, is, are_alike))
    return "was " + before + "; is " + now;
  std::string text = list_difference(was[0], is[0]);
  const std::string betas = was[1].empty() ? "" : list_difference(was[1], is[1]);
  if (!betas.empty()) text += (text.empty() ? "beta1 " : "; beta1 ") + betas;
  return text;
}

// "another batch", "other held-out data".
std::string another(const std::string& name) {
  const bool has_no_article =
      name == "training data" || name == "held-out data" || name == kGroups || name == kEpochBatch;
  return (has_no_article ? "other " : "another ") + name;
}

std::string loss_scale_text(const config::Fp16Config& fp16) {
  if (!fp16.is_dynamic()) return nine_digits(fp16.loss_scale);
  return "dynamic, from " + nine_digits(fp16.initial_scale()) + " to no less than " +
         nine_digits(fp16.min_loss_scale) + ", window " + std::to_string(fp16.loss_scale_window) +
         (fp16.is_unpartitioned ? ", of stage 0" : "") + ", hysteresis " +
         std::to_string(fp16.hysteresis) + (fp16.consecutive_hysteresis ? ", consecutive" : "");
}

std::string dropout_text(const config::ModelConfig& model) {
  return nine_digits(model.embd_pdrop) + " of embeddings, " + nine_digits(model.attn_pdrop) +
         " of attention, " + nine_digits(model.resid_pdrop) + " of residuals";
}

std::string held_out_text(const TrainRequest& request, const Data& data) {
  if (data.separate_eval) return data.separate_eval->identity();
  if (!request.evaluation.fraction) return "nothing";
  return nine_digits(100 * *request.evaluation.fraction) + " % of the training data";
}

std::string order_text(const models::Dataset& data) {
  const std::uint64_t sequences = data.epoch_sequences();
  return sequences == 0 ? "drawn with replacement"
                        : "epochs of " + std::to_string(sequences) + " sequences";
}

// Where it computes, and how: "the host", "NVIDIA H200, deterministic".
std::string device_text(const plan::Plan& plan) {
  if (!plan.device.gpu) return "the host";
  const config::SluiceConfig& sluice = plan.config.sluice;
  return plan.device.gpu->name + (sluice.gpu_math.deterministic ? ", deterministic" : "") +
         (sluice.gpu_math.tf32 && plan.compute_dtype == DType::fp32 ? ", TF32" : "");
}

// How the gradients of several ranks become one: "the mean, divided before the sum, sent as bf16".
std::string reduction_text(const config::TrainConfig& config) {
  const config::ReductionConfig& reduction = config.zero.reduction;
  const double before = reduction.divisor_before_sum(config.world_size);
  return std::string(reduction.takes_sum ? "the sum" : "the mean") +
         (before == 1 ? "" : ", divided by " + nine_digits(before) + " before the sum") +
         ", sent as " + std::string(name_of(config.wire_dtype()));
}

}  // namespace

models::RunSettings settings_of(const TrainRequest& request, const plan::Plan& plan,
                                const Data& data) {
  const config::TrainConfig& config = plan.config;
  models::RunSettings settings = {
      {kBatchSetting, batch_text(config)},
      {"device", device_text(plan)},
      {"dropout", dropout_text(plan.model)},
      {"gradient clipping", nine_digits(config.gradient_clipping)},
      {"type of gradient sums", std::string(name_of(config.gradient_dtype()))},
      {"held-out data", held_out_text(request, data)},
      {"learning rate", learning_rate_text(config)},
      {kMicroBatchesPerPass, std::to_string(plan.schedule.passes.each)},
      {kLastPass, std::to_string(plan.schedule.passes.last)},
      {"optimizer", optimizer_text(config.optimizer)},
      {"order of the data", order_text(*data.train)},
      {kGroups, groups_text(plan.groups)},
      {"training data", data.train->identity()}};
  if (data.train->epoch_sequences() > 0)
    settings[kEpochBatch] = std::to_string(config.train_batch_size);
  if (config.world_size > 1) settings["gradient over the ranks"] = reduction_text(config);
  if (config.fp16.enabled) settings["loss scale"] = loss_scale_text(config.fp16);
  return settings;
}

void compare_settings(const models::RunSettings& saved, const models::RunSettings& now,
                      bool strict) {
  std::string differences;
  for (const auto& [name, value] : now) {
    const auto before = saved.find(name);
    if (before == saved.end() || before->second == value) continue;
    const std::string difference =
        "resumed with " + another(name) + ": " + difference_of(before->second, value);
    if (!strict) log(LogLevel::warn, difference);
    differences += (differences.empty() ? "" : "\n") + difference;
  }
  SLUICE_CHECK(!strict || differences.empty(), "\"strict\": true does not allow: " + differences);
}

void check_place_in_epochs(const models::RunSettings& saved, const models::RunSettings& now) {
  const auto before = saved.find(kEpochBatch);
  const auto after = now.find(kEpochBatch);
  if (before == saved.end() || after == now.end()) return;
  SLUICE_CHECK(before->second == after->second,
               "--epochs: the run had " + before->second + " sequences a step, and has " +
                   after->second +
                   " now; its place in the epochs is counted in steps, so sequences would be left "
                   "out or repeated: give the batch size of before");
}

void compare_checksums(const models::RunSettings& saved, const models::RunSettings& now,
                       const models::RunSettings& checksums, bool strict) {
  for (const char* data : {"training data", "held-out data"}) {
    const auto before = saved.find(data);
    if (before == saved.end() || before->second != now.at(data)) return;
  }
  compare_settings(saved, checksums, strict);
}

}  // namespace sluice::train
