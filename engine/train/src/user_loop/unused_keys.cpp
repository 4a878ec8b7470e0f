#include "user_loop/unused_keys.hpp"

#include <string>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::train {

config::TrainConfig note_unused_keys(config::TrainConfig config, LoopKind kind) {
  const bool is_python = kind == LoopKind::hooked;
  std::vector<std::string> lines;
  const auto add = [&](const std::string& key, const char* in_python, const char* in_cpp) {
    lines.push_back(key + " has no effect in " +
                    (is_python ? std::string("Python: ") + in_python
                               : std::string("a loop of your own: ") + in_cpp));
  };
  const config::MonitorsConfig& monitors = config.monitors;
  if (is_python && config.sluice.activations != config::Activations::automatic)
    add("sluice.activations (and cpu_checkpointing)",
        "the graph is PyTorch's; the model's gradient_checkpointing_enable() or "
        "sluice.checkpointing.checkpoint computes activations again",
        "");
  if (config.sluice.passes.each)
    add("sluice.micro_batches_per_pass", "engine.train_batch(by_layer=True) goes layer by layer",
        "it decides the order itself");
  if (monitors.memory_breakdown)
    add("memory_breakdown", "engine.report() has the peaks", "counters() has the peaks");
  if (monitors.flops_profiler.enabled)
    add("flops_profiler", "torch.profiler counts with_flops", "only the built-in model is counted");
  if (!is_python && monitors.wall_clock_breakdown)
    add("wall_clock_breakdown", "", "it knows its times itself");
  SLUICE_CHECK(!config.sluice.strict || lines.empty(),
               "\"strict\": true does not allow: " + join(lines, "; "));
  config.notes.insert(config.notes.end(), lines.begin(), lines.end());
  return config;
}

}  // namespace sluice::train
