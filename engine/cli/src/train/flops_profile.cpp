#include "train/flops_profile.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sluice/base/text.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

// "1.23 G", "45.6 m", as DeepSpeed writes numbers.
std::string with_prefix(double value, const char* unit) {
  constexpr std::pair<double, const char*> kPrefixes[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"},
                                                          {1e3, "K"},  {1, ""},    {1e-3, "m"}};
  for (const auto& [size, prefix] : kPrefixes) {
    if (value >= size || (value == 0 && size == 1))
      return format_number("%.2f ", value / size) + prefix + unit;
  }
  return format_number("%.2f u", value / 1e-6) + unit;
}

double per_second(double work, double seconds) {
  return seconds > 0 ? work / seconds : 0;
}

void add_row(std::string& text, std::string name, const std::string& value) {
  name.resize(std::max<std::size_t>(name.size(), 70), ' ');
  text += name + "  " + value + "\n";
}

double parameters_of(const plan::Plan& plan, std::size_t first, std::size_t last) {
  double count = 0;
  for (std::size_t u = first; u <= last; ++u)
    count += static_cast<double>(plan.layouts[u].param_count);
  return count;
}

// Multiply-accumulates of a forward over one sequence: those of matrix products, attention over the
// whole sequence. The head's include no embedding, which multiplies nothing.
struct ForwardMacs {
  double block = 0;  // one of n_layer
  double head = 0;
};
ForwardMacs forward_macs(const config::ModelConfig& model) {
  const auto width = static_cast<double>(model.n_embd);
  const auto length = static_cast<double>(model.n_positions);
  const auto inner = static_cast<double>(model.inner_size());
  // For one token: q, k and v, the projection, scores and their product with v, and two layers.
  const double block = 4 * width * width + 2 * length * width + 2 * width * inner;
  return {length * block, length * width * static_cast<double>(model.vocab_size)};
}

std::string parts_table(const plan::Plan& plan, double sequences) {
  const ForwardMacs macs = forward_macs(plan.model);
  const auto layers = static_cast<double>(plan.model.n_layer);
  const double all = layers * macs.block + macs.head;
  const std::size_t last = plan.layouts.size() - 1;
  const auto row = [&](const std::string& name, double parameters, double part) {
    return std::vector<std::string>{name, with_prefix(parameters, ""),
                                    with_prefix(sequences * part, "MACs"),
                                    format_number("%.1f %%", 100 * part / all)};
  };
  return format_table({{"part", "params", "fwd MACs", "of all"},
                       row("embedding", parameters_of(plan, 0, 0), 0),
                       row(std::to_string(plan.model.n_layer) + " blocks",
                           parameters_of(plan, 1, last - 1), layers * macs.block),
                       row("head", parameters_of(plan, last, last), macs.head)});
}

}  // namespace

std::string flops_profile(const plan::Plan& plan, const train::StepRecord& record) {
  const config::TrainConfig& config = plan.config;
  const config::FlopsProfilerConfig& profiler = config.monitors.flops_profiler;
  const auto micro_batches = static_cast<double>(config.gradient_accumulation_steps);
  const auto sequences = static_cast<double>(config.micro_batch_size);
  const ForwardMacs macs = forward_macs(plan.model);
  const double all = sequences * (static_cast<double>(plan.model.n_layer) * macs.block + macs.head);
  const double forward = record.parts.forward_seconds / micro_batches;
  const double backward = record.parts.backward_seconds / micro_batches;
  const double whole = record.seconds / micro_batches;
  const double passes = 3 + profiler.recompute_fwd_factor;  // backward costs two forwards
  std::string text = "\n-------------------------- Flops Profiler --------------------------\n";
  text += "Profile Summary at step " + std::to_string(profiler.profile_step) +
          ": one micro-batch of step " + std::to_string(record.step) +
          ", counting from 1. The head's forward is part of bwd\n";
  add_row(text, "world size: ", std::to_string(config.world_size));
  add_row(text, "batch size per GPU: ", std::to_string(config.micro_batch_size));
  add_row(text,
          "params per GPU: ", with_prefix(static_cast<double>(plan.model_size.parameters), ""));
  add_row(text, "fwd MACs per GPU: ", with_prefix(all, "MACs"));
  add_row(text, "fwd flops per GPU: ", with_prefix(2 * all, ""));
  add_row(text, "fwd latency: ", with_prefix(forward, "s"));
  add_row(text, "bwd latency: ", with_prefix(backward, "s"));
  add_row(text,
          "fwd+bwd FLOPS per GPU = " + format_number("%g", passes) +
              " * fwd flops per GPU / (fwd+bwd latency): ",
          with_prefix(per_second(2 * passes * all, forward + backward), "FLOPS"));
  add_row(text, "step latency: ", with_prefix(whole - forward - backward, "s"));
  add_row(text, "iter latency: ", with_prefix(whole, "s"));
  add_row(
      text,
      "FLOPS per GPU = " + format_number("%g", passes) + " * fwd flops per GPU / iter latency: ",
      with_prefix(per_second(2 * passes * all, whole), "FLOPS"));
  add_row(text, "samples/second: ", format_number("%.2f", per_second(sequences, whole)));
  if (profiler.detailed) text += "\n" + parts_table(plan, sequences);
  return text;
}

}  // namespace sluice::cli
