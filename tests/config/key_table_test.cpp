// Walks the key table: every row has the fate it names, and docs/config.md shows the same rows.
#include "sluice/config/key_table.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "config_testing.hpp"
#include "key_samples.hpp"

namespace sluice::config::test {
namespace {
using testing::HasSubstr;
using Values = std::vector<std::pair<std::string, std::string>>;

// Every field of a configuration as text, so that the effect of every key shows.
std::string describe(const OffloadConfig& o) {
  std::ostringstream out;
  out << static_cast<int>(o.device) << ' ' << testing::PrintToString(o.directories) << ' '
      << (o.pin_memory ? (*o.pin_memory ? "pinned" : "pageable") : "-") << ' '
      << o.buffer_count.value_or(-1) << ' ' << o.buffer_size.value_or(0) << ' ' << o.ratio << '\n';
  return out.str();
}
struct ShowParameter {
  std::ostringstream& out;
  void operator()(std::string_view, const std::optional<double>& value) const {
    out << value.value_or(-1) << ' ';
  }
  void operator()(std::string_view, const std::vector<std::int64_t>& values) const {
    for (const std::int64_t value : values) out << value << ' ';
  }
  void operator()(std::string_view, WarmupType type) const { out << static_cast<int>(type) << ' '; }
  void operator()(std::string_view, std::int64_t value) const { out << value << ' '; }
  void operator()(std::string_view, double value) const { out << value << ' '; }
  void operator()(std::string_view, bool value) const { out << value << ' '; }
};
std::string describe(const SchedulerConfig& scheduler) {
  std::ostringstream out;
  out << scheduler.index() << ' ';
  std::visit(
      [&](const auto& s) {
        if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(s)>, std::monostate>)
          std::remove_cvref_t<decltype(s)>::visit(s, ShowParameter{out});
      },
      scheduler);
  out << '\n';
  return out.str();
}
std::string describe(const SluiceConfig& s) {
  std::ostringstream out;
  out << name_of(s.device) << ' ' << s.gpu_math.deterministic << s.gpu_math.tf32 << ' '
      << s.passes.each.value_or(0) << ' ' << s.passes.last.value_or(0) << '\n';
  for (const ByteBudget& b : {s.device_bytes, s.host_bytes, s.cache_bytes,
                              s.updates.speculative_bytes, s.checkpoints.copy_bytes}) {
    out << static_cast<int>(b.kind) << ' ' << b.value << '\n';
  }
  out << s.updates.on_gpu << s.updates.in_backward << ' ' << static_cast<int>(s.durability) << ' '
      << s.commit_every << ' ' << s.checkpoints.directory << ' ' << s.checkpoints.every << ' '
      << s.checkpoints.keep << ' ' << s.strict << s.approximate << s.overlap << ' '
      << static_cast<int>(s.non_finite) << static_cast<int>(s.activations) << ' '
      << s.threads.compute.value_or(0) << ' ' << s.threads.optimizer.value_or(0) << ' '
      << s.threads.io.value_or(0) << ' ' << s.io.backend << ' ' << s.io.reads_per_write << ' '
      << s.seed << ' ' << s.io.drive_endurance_bytes << s.io.submit_polling << '\n';
  if (s.master) out << name_of(*s.master) << ' ';
  if (s.moments) out << name_of(*s.moments) << ' ';
  for (const unsigned weight : s.io.drive_weights) out << weight << ' ';
  return out.str();
}
std::string describe(const TrainConfig& c) {
  std::ostringstream out;
  out << c.train_batch_size << ' ' << c.micro_batch_size << ' ' << c.gradient_accumulation_steps
      << '\n';
  const OptimizerConfig& o = c.optimizer;
  out << static_cast<int>(o.type) << ' ' << o.lr << ' ' << o.beta1 << ' ' << o.beta2 << ' ' << o.eps
      << ' ' << o.weight_decay << ' ' << o.bias_correction << o.amsgrad << ' ' << o.lr_decay << ' '
      << o.initial_accumulator_value << ' ' << o.momentum << ' ' << o.dampening << ' ' << o.nesterov
      << o.maximize << '\n';
  out << c.groups.no_decay_of_biases_and_norms << '\n';
  for (const GroupConfig& group : c.groups.entries) {
    for (const std::string& pattern : group.match) out << pattern << ' ';
    for (const auto& value :
         {group.lr, group.weight_decay, group.beta1, group.beta2, group.eps, group.momentum})
      out << value.value_or(-1) << ' ';
  }
  out << describe(c.scheduler) << c.gradient_clipping << ' ' << c.bf16 << c.fp32_gradient_sums
      << ' ' << c.monitors.steps_per_print.value_or(-1) << c.drop_last << '\n';
  const MonitorsConfig& m = c.monitors;
  for (const MonitorFiles& files : {m.tensorboard, m.csv})
    out << files.enabled << files.directory() << ' ';
  out << m.wall_clock_breakdown << m.memory_breakdown << m.throughput << '\n';
  const CommsLoggerConfig& l = m.comms_logger;
  out << l.enabled << l.verbose << l.prof_all << l.debug << ' ';
  for (const std::string& operation : l.prof_ops) out << operation << ' ';
  const FlopsProfilerConfig& p = m.flops_profiler;
  out << p.enabled << p.detailed << ' ' << p.profile_step << ' ' << p.recompute_fwd_factor << ' '
      << p.output_file << '\n';
  const Fp16Config& f = c.fp16;
  out << f.enabled << ' ' << f.loss_scale << ' ' << f.initial_scale_power << ' '
      << f.loss_scale_window << ' ' << f.hysteresis << ' ' << f.consecutive_hysteresis << ' '
      << f.min_loss_scale << '\n';
  const ZeroConfig& z = c.zero;
  out << z.stage << '\n' << describe(z.offload_param) << describe(z.offload_optimizer);
  out << z.sub_group_size << ' ' << z.prefetch_bucket_size << ' ' << z.max_live_parameters << ' '
      << z.max_reuse_distance << ' ' << z.param_persistence_threshold << ' '
      << z.model_persistence_threshold << '\n';
  const ReductionConfig& r = z.reduction;
  out << r.takes_sum << r.prescales << ' ' << r.predivide_factor << ' '
      << (r.wire_dtype ? name_of(*r.wire_dtype) : "-") << '\n';
  out << c.aio.block_size << ' ' << c.aio.queue_depth << ' ' << c.aio.intra_op_parallelism << '\n';
  return out.str() + describe(c.sluice);
}

// A scheduler that reads the parameter, and the other parameters that it needs.
std::pair<std::string, Values> scheduler_with(const std::string& name) {
  const auto in = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (name.ends_with("_ratio")) return {"WarmupCosineLR", {{"total_num_steps", "5000"}}};
  if (name == "total_num_steps") return {"WarmupDecayLR", {{"total_num_steps", "5000"}}};
  if (name.starts_with("cycle_") || name.starts_with("decay_"))
    return {"OneCycle", {{"cycle_min_lr", "0.5"}, {"cycle_max_lr", "0.75"}}};
  if (name.starts_with("lr_range_")) return {"LRRangeTest", {}};
  if (name == "factor") return {"ConstantLR", {}};
  if (in({"start_factor", "end_factor", "total_iters"})) return {"LinearLR", {}};
  if (name == "power") return {"PolynomialLR", {}};
  if (in({"step_size", "gamma"})) return {"StepLR", {{"step_size", "9"}}};
  if (name == "milestones") return {"MultiStepLR", {{"milestones", "[9]"}}};
  if (in({"T_max", "eta_min"})) return {"CosineAnnealingLR", {{"T_max", "9"}}};
  if (name.starts_with("T_")) return {"CosineAnnealingWarmRestarts", {{"T_0", "9"}}};
  return {"WarmupLR", {}};
}

Values sluice_context_of(const std::string& path) {
  if (path == "sluice.last_pass_micro_batches")
    return {{"gradient_accumulation_steps", "8"}, {"sluice.micro_batches_per_pass", "1"}};
  if (path == "sluice.optimizer_in_backward") return {{"gradient_clipping", "0"}};
  if (path.starts_with("sluice.checkpoint_") || path.starts_with("sluice.keep"))
    return {{"sluice.checkpoint_dir", "\"/somewhere\""}, {"sluice.checkpoint_every", "10"}};
  return {};
}

// The optimizer that has a key.
std::string optimizer_of(const std::string& path) {
  for (const std::string key : {"momentum", "dampening", "nesterov"}) {
    if (path == "optimizer.params." + key) return "\"SGD\"";
  }
  for (const std::string key : {"lr_decay", "initial_accumulator_value"}) {
    if (path == "optimizer.params." + key) return "\"Adagrad\"";
  }
  return "\"Adam\"";
}

// The other keys that make a key valid or give it an effect.
Values context_of(const std::string& path) {
  Values context = {{"optimizer.type", optimizer_of(path)}, {"train_batch_size", "8"}};
  const auto in = [&](const std::string& section) { return path.starts_with(section); };
  if (path == "optimizer.params.nesterov") context.push_back({"optimizer.params.momentum", "0.5"});
  if (path == "train_batch_size") context.back() = {"train_micro_batch_size_per_gpu", "4"};
  if (in("scheduler.params.")) {
    const auto [type, params] = scheduler_with(path.substr(path.rfind('.') + 1));
    context.push_back({"scheduler.type", "\"" + type + "\""});
    for (const auto& [name, value] : params) context.push_back({"scheduler.params." + name, value});
  }
  for (const std::string section :
       {"tensorboard.", "csv_monitor.", "flops_profiler.", "comms_logger."}) {
    if (in(section) && path != section + "enabled")
      context.push_back({section + "enabled", "true"});
  }
  if (in("data_types."))
    context.push_back(
        {path.ends_with("grad_accum_dtype") ? "bf16.enabled" : "fp16.enabled", "true"});
  if (in("fp16.") && path != "fp16.enabled") context.push_back({"fp16.enabled", "true"});
  if (in("zero_optimization.") && path != "zero_optimization.stage") {
    context.push_back({"zero_optimization.stage", "3"});
  }
  for (const std::string section : {"offload_param", "offload_optimizer"}) {
    const std::string full = "zero_optimization." + section + ".";
    if (!in(full) || path == full + "device") continue;
    context.push_back({full + "device", "\"nvme\""});
    context.push_back({full + "nvme_path", "\"/somewhere\""});
  }
  for (const auto& each : sluice_context_of(path)) context.push_back(each);
  return context;
}

// A value of the row's type that is not its default.
std::string other_value(const KeyInfo& info) {
  const std::string type(info.type);
  if (type.starts_with("bool")) return info.default_json == "true" ? "false" : "true";
  if (type.starts_with("integer")) return info.default_json == "7" ? "8" : "7";
  if (type.starts_with("number in [0, 1]")) return "0.375";
  if (type.starts_with("number")) return "7.5";
  if (type.starts_with("list")) return "[7]";
  if (type.starts_with("object")) return "{\"enabled\": true}";
  if (type == "one of fp16, bf16, fp32") return "\"bf16\"";
  if (type.starts_with("one of ")) return "\"" + type.substr(type.rfind(' ') + 1) + "\"";
  return "\"7\"";  // string, bytes
}

bool is_json(std::string_view default_json) {
  return default_json != "required" && default_json != "none" && default_json != "never";
}

std::string alias_path(const KeyInfo& info) {
  const std::string path(info.path);
  return path.substr(0, path.rfind('.') + 1) + std::string(info.alias);
}

TEST(KeyTable, NamesEachKeyOnce) {
  for (const auto table : {key_table(), model_key_table()}) {
    std::set<std::string> seen;
    for (const KeyInfo& info : table) {
      EXPECT_TRUE(seen.insert(std::string(info.path)).second) << info.path;
      if (info.alias.empty()) continue;
      EXPECT_TRUE(seen.insert(alias_path(info)).second) << info.alias;
    }
  }
}

TEST(KeyTable, EveryHonouredKeyChangesTheConfiguration) {
  for (const KeyInfo& info : key_table()) {
    if (info.fate != Fate::honoured) continue;
    const std::string path(info.path);
    const std::string sample = sample_of(path);
    ASSERT_FALSE(sample.empty()) << "no sample value for " << path;
    const JsonText without(context_of(path));
    const JsonText with = JsonText(without).set(path, sample);
    ASSERT_EQ(shown(problems_of(with)), "") << path;
    // AdamW is Adam's default mode; there the other mode is the visible one.
    const std::string before =
        describe(path == "optimizer.type"
                     ? parse(JsonText(without).set("optimizer.params.adam_w_mode", "false"))
                     : parse(without));
    EXPECT_NE(describe(parse(with)), before) << path;
    if (info.alias.empty() || path == "bf16") continue;
    EXPECT_EQ(describe(parse(JsonText(without).set(alias_path(info), sample))),
              describe(parse(with)))
        << info.alias;
  }
}

// The file with the section of the key switched on.
JsonText switched_on(const Values& context, const std::string& path) {
  JsonText json(context);
  const std::string section = path.substr(0, path.rfind('.') + 1);
  for (const std::string name : {"enabled", "deepcompile"}) {
    const bool has_switch =
        std::any_of(key_table().begin(), key_table().end(),
                    [&](const KeyInfo& other) { return other.path == section + name; });
    if (has_switch && !section.empty()) json.set(section + name, "true");
  }
  return json;
}

TEST(KeyTable, EveryMappedKeyLeavesALineThatSaysWhatItMeans) {
  for (const KeyInfo& info : key_table()) {
    if (info.fate != Fate::mapped) continue;
    const std::string path(info.path);
    const JsonText json =
        switched_on(context_of(path), path)
            .set(path, info.path == "zero_optimization" ? "true" : other_value(info));
    ASSERT_EQ(shown(problems_of(json)), "") << path;
    EXPECT_THAT(parse(json).notes, testing::Contains((info.warns ? "warning: " : "mapped: ") +
                                                     path + ": " + std::string(info.note)));
  }
}

// The refused switch of the key's section, or the key itself.
std::string refused_switch_of(const std::string& path) {
  const std::string section = path.substr(0, path.rfind('.') + 1);
  for (const KeyInfo& info : key_table()) {
    const bool is_switch = info.path == section + "enabled" || info.path == section + "deepcompile";
    if (!section.empty() && is_switch && info.fate == Fate::refused) return std::string(info.path);
  }
  return path;
}

TEST(KeyTable, EveryRefusedKeySaysWhatRunsWithoutIt) {
  for (const KeyInfo& info : key_table()) {
    EXPECT_FALSE(info.fate == Fate::refused && info.note.empty()) << info.path;
  }
}

TEST(KeyTable, EveryRefusedKeyIsRefusedAtItsPosition) {
  for (const KeyInfo& info : key_table()) {
    if (info.fate != Fate::refused) continue;
    const std::string path(info.path);
    JsonText json = switched_on(context_of(path), path);
    json.set(path, other_value(info));
    const auto problems = problems_of(json);
    // A refused switch stands for its whole section.
    const std::string blamed = refused_switch_of(path);
    const auto found = std::find_if(problems.begin(), problems.end(),
                                    [&](const Problem& p) { return p.key_path == blamed; });
    ASSERT_NE(found, problems.end()) << path << "\n" << shown(problems);
    EXPECT_THAT(found->message, HasSubstr(info.default_json == "never" ? std::string(info.note)
                                                                       : "not supported yet"));
    const std::string name = blamed.substr(blamed.rfind('.') + 1);
    EXPECT_TRUE(text_at(json.text(), found->line, found->column).starts_with("\"" + name + "\""))
        << path << " reported at " << found->line << ":" << found->column;
  }
}

TEST(KeyTable, EveryDefaultIsAcceptedAndChangesNothing) {
  for (const KeyInfo& info : key_table()) {
    if (!is_json(info.default_json)) continue;
    const std::string path(info.path);
    const bool context_has_it = path.ends_with("nvme_path") || path == "train_batch_size" ||
                                path == "sluice.checkpoint_every" ||
                                path == "sluice.checkpoint_dir";
    const JsonText without(context_of(path));
    const JsonText with = JsonText(without).set(path, std::string(info.default_json));
    if (context_has_it) continue;  // there the context gives the key a value of its own
    ASSERT_EQ(shown(problems_of(with)), "") << path;
    EXPECT_EQ(describe(parse(with)), describe(parse(without))) << path;
  }
}

TEST(ModelKeyTable, EveryRefusedKeyIsRefusedAndEveryDefaultAccepted) {
  for (const KeyInfo& info : model_key_table()) {
    JsonText json;
    json.set("model_type", "\"gpt2\"");
    const std::string path(info.path);
    if (info.fate == Fate::refused) {
      const auto problems = model_problems_of(JsonText(json).set(path, other_value(info)).text());
      ASSERT_EQ(problems.size(), 1U) << path;
      EXPECT_EQ(problems[0].key_path, path);
      EXPECT_THAT(problems[0].message, HasSubstr("not supported yet"));
    }
    if (is_json(info.default_json)) {
      json.set(path, std::string(info.default_json));
      EXPECT_EQ(shown(model_problems_of(json.text())), "") << path;
    }
  }
}

}  // namespace
}  // namespace sluice::config::test
