#include "run/run_report.hpp"

#include <torch/version.h>

#include <string>

#include "measure/median.hpp"
#include "saved/checkpoint.hpp"
#include "sluice/base/text.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::train {

namespace {

std::string norms_by(const RunDevice& device) {
  if (!device.gpu) return "host";
  return device.gpu->has_kernels() ? "own kernel" : "LibTorch";
}

std::vector<std::pair<std::string, std::string>> versions_of(const RunResources& resources) {
  return {{"sluice", SLUICE_VERSION},
          {"libtorch", TORCH_VERSION},
          {"adam_kernel", std::string(cpu_adam::kernel_in_use())},
          {"device", resources.compute.gpu ? std::string(resources.device->name()) : "host"},
          {"gpu_norms", norms_by(resources.compute)},
          {"executor", std::string(resources.executor->name())},
          {"io", resources.files.io ? std::string(resources.files.io->backend_name()) : "none"},
          {"compiler", __VERSION__}};
}

void fill_memory(RunReport& report, const ReportSources& from) {
  const plan::Plan& plan = from.setup.plan;
  report.memory.budget = {plan.budget.device_bytes.value_or(0), plan.budget.host_bytes.value_or(0),
                          0};
  report.memory.planned = plan.planned.tiers;
  report.memory.runtime_planned_bytes = plan.planned.runtime_bytes;
  report.memory.runtime_peak_bytes = from.sampler.runtime_peak_bytes();
  report.memory.rss_peak_bytes = from.sampler.resident_peak_bytes();
  report.memory.device_gap_peak_bytes = from.sampler.device_gap_peak_bytes();
}

// Read and written states, read gradients, and written weights unless they are a part of the
// states.
std::uint64_t update_bytes(const plan::Plan& plan) {
  const std::size_t weight = plan.state_format.is_split() ? 0 : size_of(plan.compute_dtype);
  const std::size_t each =
      2 * plan.state_format.element_bytes() + size_of(plan.config.gradient_dtype()) + weight;
  std::uint64_t elements = 0;
  for (const zero::UnitLayout& layout : plan.layouts) {
    if (!layout.frozen) elements += zero::shard_count(layout, plan.config.world_size);
  }
  return elements * each;
}

void fill_speed(RunReport& report, const ReportSources& from) {
  const plan::Plan& plan = from.setup.plan;
  const RunTally& tally = from.tally;
  if (tally.steps > 0) {
    report.speed.tokens_per_second = static_cast<double>(tally.tokens) / tally.seconds;
    report.speed.step_seconds = median(tally.last_seconds.values());
  }
  if (const auto saved = plan::load_rates(from.request.rates_path, plan::rates_key(plan)))
    report.speed.predicted = plan::predict(plan, saved->rates);
  report.speed.update_bytes = update_bytes(plan);
  report.speed.start = tally.start;
  report.traffic.planned_step = {plan.traffic.h2d_bytes, plan.traffic.d2h_bytes,
                                 plan.traffic.nvme_read_bytes, plan.traffic.nvme_written_bytes,
                                 plan.traffic.nvme_cached_bytes};
  report.traffic.measured_step = tally.last_bytes;
}

}  // namespace

void RunTally::add(const StepRecord& record) {
  ++steps;
  seconds += record.seconds;
  last_seconds.add(record.seconds);
  tokens += record.tokens;
  skipped += record.skipped ? 1 : 0;
  last_loss = record.loss;
  last_bytes = record.bytes;
}

RunReport make_report(const ReportSources& from) {
  RunReport report;
  report.parameters = from.setup.plan.model_size.parameters;
  report.state_bytes = from.setup.plan.model_size.state_bytes;
  from.meter.fill(report);
  fill_memory(report, from);
  fill_speed(report, from);
  report.losses.evaluation = from.tally.eval_loss;
  report.losses.last = from.tally.last_loss;
  report.losses.loss_scale = from.progress.loss_scaler.reported();
  report.steps = from.tally.steps;
  report.last_step = from.progress.step;
  report.committed_step = from.progress.committed_step;
  report.skipped_steps = from.tally.skipped;
  if (report.skipped_steps > 0)
    report.notices.push_back(std::to_string(report.skipped_steps) + " of " +
                             counted(report.steps, "step") +
                             " updated nothing, since gradients were not finite");
  report.missed_checkpoints = from.progress.missed.count;
  if (report.missed_checkpoints > 0) report.notices.push_back(missed_text(from.progress.missed));
  report.choices = from.setup.plan.choices;
  report.versions = versions_of(from.resources);
  report.commit = SLUICE_COMMIT;
  report.command_line = from.request.command_line;
  report.stopped_by_signal = from.stopped_by_signal;
  return report;
}

}  // namespace sluice::train
