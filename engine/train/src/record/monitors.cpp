#include "record/monitors.hpp"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::train {

namespace {

constexpr const char* kSection = "Train/Samples/";
constexpr const char* kTags[] = {"train_loss",
                                 "lr",
                                 "grad_norm",
                                 "loss_scale",
                                 "eval_loss",
                                 "elapsed_time_ms_forward",
                                 "elapsed_time_ms_backward",
                                 "elapsed_time_ms_backward_inner",
                                 "elapsed_time_ms_backward_allreduce",
                                 "elapsed_time_ms_step"};

constexpr const char* kAtStep0 = "samples of monitors at step 0";

std::optional<std::int64_t> saved_batch(const models::RunSettings& settings) {
  const auto batch = settings.find(kBatchSetting);
  std::int32_t each = 0, count = 0;
  if (batch == settings.end() ||
      std::sscanf(batch->second.c_str(), "micro-batches of %" SCNd32 ", %" SCNd32, &each, &count) !=
          2)
    return std::nullopt;
  return std::int64_t{each} * count;
}

std::int64_t saved_at_step_0(const models::RunSettings& settings) {
  const auto samples = settings.find(kAtStep0);
  return samples == settings.end() ? 0 : std::strtoll(samples->second.c_str(), nullptr, 10);
}

// The samples in a row of a CSV file; 0 for its header.
std::optional<std::int64_t> samples_of(const std::string& line) {
  if (line.starts_with("step,")) return 0;
  std::int64_t samples = 0;
  const char* const end = line.data() + line.size();
  const auto [stopped, problem] = std::from_chars(line.data(), end, samples);
  if (problem != std::errc() || stopped == end || *stopped != ',' || samples < 1) return {};
  return samples;
}

}  // namespace

std::string batch_text(const config::TrainConfig& config) {
  return "micro-batches of " + std::to_string(config.micro_batch_size) + ", " +
         std::to_string(config.gradient_accumulation_steps * config.world_size) + " a step";
}

SamplesAxis axis_behind(const models::RunState* resumed, const config::TrainConfig& config) {
  const std::int64_t batch = config.train_batch_size;
  if (resumed == nullptr) return batch;
  const SamplesAxis before(saved_batch(resumed->settings).value_or(batch),
                           saved_at_step_0(resumed->settings));
  return {batch, before.at(resumed->step) - resumed->step * batch};
}

void note_axis(const SamplesAxis& axis, const config::TrainConfig& config,
               models::RunSettings& settings) {
  settings[kBatchSetting] = batch_text(config);
  if (axis.at_step_0 != 0) settings[kAtStep0] = std::to_string(axis.at_step_0);
}

std::vector<Scalar> scalars_of(const StepRecord& record, bool times) {
  std::vector<Scalar> scalars;
  const auto add = [&](const char* name, double value) {
    scalars.push_back({kSection + std::string(name), value});
  };
  if (record.loss_is_known) add("train_loss", record.loss);
  add("lr", record.lr);
  add("grad_norm", record.grad_norm);
  if (record.loss_scale) add("loss_scale", *record.loss_scale);
  if (record.eval_loss) add("eval_loss", *record.eval_loss);
  if (!times) return scalars;
  add("elapsed_time_ms_forward", 1e3 * record.parts.forward_seconds);
  add("elapsed_time_ms_backward", 1e3 * record.parts.backward_seconds);
  add("elapsed_time_ms_backward_inner", 1e3 * record.parts.backward_seconds);
  // Several ranks reduce beside backward, and no time of a step is theirs alone.
  if (record.ranks == 1) add("elapsed_time_ms_backward_allreduce", 0);
  add("elapsed_time_ms_step", 1e3 * record.step_seconds());
  return scalars;
}

// repr() of Python's float: fixed for exponents from -4 to 15, else scientific.
std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[40];
  const auto end =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific).ptr;
  std::string scientific(text, end);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (value != 0 && (exponent < -4 || exponent >= 16)) return scientific;
  const auto fixed_end =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::fixed).ptr;
  std::string fixed(text, fixed_end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

Monitors::Monitors(const config::MonitorsConfig& config, std::int64_t committed_step,
                   const SamplesAxis& axis)
    : config_(config), axis_(axis), committed_samples_(axis.at(committed_step)) {
  if (config.csv.enabled) open_rows();
  // Last: TensorBoard goes on to a newer file, even one that a refused run leaves empty, and does
  // not return to the one that the run at work writes to.
  if (config.tensorboard.enabled)
    events_.emplace(config.tensorboard.directory(), committed_samples_ + 1);
}

// Opens the CSV files that are there.
void Monitors::open_rows() {
  make_directory(config_.csv.directory());
  const auto open_if_there = [this](const char* name) {
    const std::string tag = kSection + std::string(name);
    return std::filesystem::exists(csv_path(tag)) ? &csv_of(tag) : nullptr;
  };
  // Another file of this run, as that of eval_loss, may have no row up to the committed step.
  if (const LineFile* rates = open_if_there("lr")) files_are_of_this_run_ = !rates->is_empty();
  for (const char* name : kTags) open_if_there(name);
}

void Monitors::append(const StepRecord& record) {
  if (!events_ && !config_.csv.enabled) return;
  const std::vector<Scalar> scalars = scalars_of(record, config_.wall_clock_breakdown);
  const std::int64_t samples = axis_.at(record.step);
  if (config_.csv.enabled)
    for (const Scalar& scalar : scalars) {
      // Rows end as those of Python's csv module.
      new_rows_[scalar.tag] += std::to_string(samples) + "," + python_number(scalar.value) + "\r\n";
    }
  write([&] { events_->append(scalars, samples); }, [](LineFile&) {});
}

void Monitors::finish() {
  write([&] { events_->finish(); }, [](LineFile& file) { file.finish(); });
}

// Tries every file; throws the first error. `lines`: what follows the rows of a file.
void Monitors::write(const std::function<void()>& events,
                     const std::function<void(LineFile&)>& lines) {
  std::exception_ptr error;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const std::runtime_error&) {  // IoError, StorageError
      if (!error) error = std::current_exception();
    }
  };
  if (events_) attempt(events);
  for (auto& rows : new_rows_)
    attempt([&] {
      LineFile& file = csv_of(rows.first);
      file.append(std::exchange(rows.second, {}));
      lines(file);
    });
  if (error) std::rethrow_exception(error);
}

std::string Monitors::csv_path(const std::string& tag) const {
  std::string name = tag;
  std::replace(name.begin(), name.end(), '/', '_');
  return config_.csv.directory() + "/" + name + ".csv";
}

LineFile& Monitors::csv_of(const std::string& tag) {
  const auto found = csv_.find(tag);
  if (found != csv_.end()) return found->second;
  return csv_
      .try_emplace(tag, csv_path(tag), committed_samples_,
                   LineFormat{.number_of = samples_of,
                              .setting = "csv_monitor.job_name",
                              .header = "step," + tag.substr(tag.rfind('/') + 1) + "\r\n"},
                   files_are_of_this_run_)
      .first->second;
}

}  // namespace sluice::train
