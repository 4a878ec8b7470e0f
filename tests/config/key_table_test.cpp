// Walks the key table: every row has the fate it names, and docs/config.md shows the same rows.
#include "sluice/config/key_table.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "config_testing.hpp"

namespace sluice::config::test {
namespace {
using testing::HasSubstr;
using Values = std::vector<std::pair<std::string, std::string>>;

// Every field of a configuration as text, so that the effect of every key shows.
std::string describe(const OffloadConfig& o) {
  std::ostringstream out;
  out << static_cast<int>(o.device) << ' ' << o.nvme_path << ' '
      << (o.pin_memory ? (*o.pin_memory ? "pinned" : "pageable") : "-") << ' '
      << o.buffer_count.value_or(-1) << ' ' << o.buffer_size.value_or(0) << '\n';
  return out.str();
}
std::string describe(const SchedulerConfig& scheduler) {
  std::ostringstream out;
  out << scheduler.index() << ' ';
  if (const auto* s = std::get_if<WarmupLR>(&scheduler)) {
    out << s->warmup_min_lr << ' ' << s->warmup_max_lr.value_or(-1) << ' ' << s->warmup_num_steps
        << ' ' << static_cast<int>(s->warmup_type);
  } else if (const auto* d = std::get_if<WarmupDecayLR>(&scheduler)) {
    out << d->total_num_steps << ' ' << d->warmup_min_lr << ' ' << d->warmup_max_lr << ' '
        << d->warmup_num_steps << ' ' << static_cast<int>(d->warmup_type);
  } else if (const auto* c = std::get_if<WarmupCosineLR>(&scheduler)) {
    out << c->total_num_steps << ' ' << c->warmup_min_ratio << ' ' << c->warmup_num_steps << ' '
        << c->cos_min_ratio << ' ' << static_cast<int>(c->warmup_type);
  }
  out << '\n';
  return out.str();
}
std::string describe(const SluiceConfig& s) {
  std::ostringstream out;
  out << name_of(s.device) << ' ' << s.deterministic << s.tf32 << ' '
      << s.micro_batches_per_pass.value_or(0) << '\n';
  for (const ByteBudget& b : {s.device_bytes, s.host_bytes, s.cache_bytes}) {
    out << static_cast<int>(b.kind) << ' ' << b.value << '\n';
  }
  out << static_cast<int>(s.durability) << ' ' << s.commit_every << ' ' << s.checkpoints.directory
      << ' ' << s.checkpoints.every << ' ' << s.checkpoints.keep << ' ' << s.strict << s.approximate
      << s.overlap << ' ' << static_cast<int>(s.non_finite) << static_cast<int>(s.activations)
      << ' ' << s.threads.compute.value_or(0) << ' ' << s.threads.optimizer.value_or(0) << ' '
      << s.threads.io.value_or(0) << ' ' << s.io.backend << ' ' << s.io.reads_per_write << ' '
      << s.seed << ' ' << s.drive_endurance_bytes << s.io.submit_polling << '\n';
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
  out << describe(c.scheduler) << c.gradient_clipping << ' ' << c.bf16 << ' '
      << c.steps_per_print.value_or(-1) << c.drop_last << '\n';
  const Fp16Config& f = c.fp16;
  out << f.enabled << ' ' << f.loss_scale << ' ' << f.initial_scale_power << ' '
      << f.loss_scale_window << ' ' << f.hysteresis << ' ' << f.consecutive_hysteresis << ' '
      << f.min_loss_scale << '\n';
  const ZeroConfig& z = c.zero;
  out << z.stage << '\n' << describe(z.offload_param) << describe(z.offload_optimizer);
  out << z.sub_group_size << ' ' << z.prefetch_bucket_size << ' ' << z.max_live_parameters << ' '
      << z.max_reuse_distance << ' ' << z.param_persistence_threshold << ' '
      << z.model_persistence_threshold << '\n';
  out << c.aio.block_size << ' ' << c.aio.queue_depth << ' ' << c.aio.intra_op_parallelism << '\n';
  return out.str() + describe(c.sluice);
}

// The other keys that make a key valid or give it an effect.
Values context_of(const std::string& path) {
  Values context = {{"optimizer.type", "\"Adam\""}, {"train_batch_size", "8"}};
  const auto in = [&](const std::string& section) { return path.starts_with(section); };
  for (const std::string key : {"momentum", "dampening", "nesterov"}) {
    if (path == "optimizer.params." + key) context.front() = {"optimizer.type", "\"SGD\""};
  }
  if (path == "optimizer.params.nesterov") context.push_back({"optimizer.params.momentum", "0.5"});
  for (const std::string key : {"lr_decay", "initial_accumulator_value"}) {
    if (path == "optimizer.params." + key) context.front() = {"optimizer.type", "\"Adagrad\""};
  }
  if (path == "train_batch_size") context.back() = {"train_micro_batch_size_per_gpu", "4"};
  if (in("scheduler.params.")) {
    const bool cosine = path.ends_with("_ratio");
    const bool total = cosine || path.ends_with("total_num_steps");
    context.push_back({"scheduler.type", cosine  ? "\"WarmupCosineLR\""
                                         : total ? "\"WarmupDecayLR\""
                                                 : "\"WarmupLR\""});
    if (total) context.push_back({"scheduler.params.total_num_steps", "5000"});
  }
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
  if (in("sluice.checkpoint_every") || in("sluice.keep") || in("sluice.checkpoint_dir")) {
    context.push_back({"sluice.checkpoint_dir", "\"/somewhere\""});
    context.push_back({"sluice.checkpoint_every", "10"});
  }
  return context;
}

// A valid value of each honoured key that is not its default (nor the context's).
std::string sample_of(const std::string& path) {
  static const std::map<std::string, std::string> kSamples = {
      {"train_batch_size", "12"},
      {"train_micro_batch_size_per_gpu", "2"},
      {"gradient_accumulation_steps", "4"},
      {"optimizer.type", "\"AdamW\""},
      {"optimizer.params.lr", "0.5"},
      {"optimizer.params.betas", "[0.5, 0.25]"},
      {"optimizer.params.eps", "0.125"},
      {"optimizer.params.weight_decay", "0.5"},
      {"optimizer.params.bias_correction", "false"},
      {"optimizer.params.adam_w_mode", "false"},
      {"optimizer.params.amsgrad", "true"},
      {"optimizer.params.lr_decay", "0.5"},
      {"optimizer.params.initial_accumulator_value", "0.5"},
      {"optimizer.params.momentum", "0.5"},
      {"optimizer.params.dampening", "0.5"},
      {"optimizer.params.nesterov", "true"},
      {"optimizer.params.maximize", "true"},
      {"sluice.groups", "[{\"match\": \"*.bias\", \"lr\": 0.5}]"},
      {"sluice.no_decay", "\"biases_and_norms\""},
      {"scheduler.type", "\"WarmupLR\""},
      {"scheduler.params.warmup_min_lr", "0.25"},
      {"scheduler.params.warmup_max_lr", "0.25"},
      {"scheduler.params.warmup_num_steps", "25"},
      {"scheduler.params.warmup_type", "\"linear\""},
      {"scheduler.params.total_num_steps", "2500"},
      {"scheduler.params.warmup_min_ratio", "0.25"},
      {"scheduler.params.cos_min_ratio", "0.25"},
      {"gradient_clipping", "0"},
      {"dataloader_drop_last", "true"},
      {"bf16", "{\"enabled\": true}"},
      {"bf16.enabled", "true"},
      {"fp16.enabled", "true"},
      {"fp16.loss_scale", "1024"},
      {"fp16.initial_scale_power", "7"},
      {"fp16.loss_scale_window", "7"},
      {"fp16.hysteresis", "7"},
      {"fp16.consecutive_hysteresis", "true"},
      {"fp16.min_loss_scale", "0.125"},
      {"zero_optimization.stage", "2"},
      {"zero_optimization.offload_param.device", "\"cpu\""},
      {"zero_optimization.offload_param.nvme_path", "\"/elsewhere\""},
      {"zero_optimization.offload_param.pin_memory", "false"},
      {"zero_optimization.offload_param.buffer_count", "7"},
      {"zero_optimization.offload_param.buffer_size", "7e6"},
      {"zero_optimization.offload_optimizer.device", "\"cpu\""},
      {"zero_optimization.offload_optimizer.nvme_path", "\"/elsewhere\""},
      {"sluice.io.drive_weights", "[3]"},
      {"sluice.io.submit_polling", "true"},
      {"sluice.drive_endurance", "\"600TB\""},
      {"zero_optimization.offload_optimizer.pin_memory", "true"},
      {"zero_optimization.offload_optimizer.buffer_count", "7"},
      {"zero_optimization.sub_group_size", "12345"},
      {"zero_optimization.stage3_prefetch_bucket_size", "12345"},
      {"zero_optimization.stage3_param_persistence_threshold", "12345"},
      {"zero_optimization.stage3_model_persistence_threshold", "12345"},
      {"zero_optimization.stage3_max_live_parameters", "12345"},
      {"zero_optimization.stage3_max_reuse_distance", "12345"},
      {"aio.block_size", "8192"},
      {"aio.queue_depth", "33"},
      {"aio.intra_op_parallelism", "3"},
      {"sluice.device", "\"cuda:3\""},
      {"sluice.deterministic", "true"},
      {"sluice.tf32", "true"},
      {"sluice.device_bytes", "\"1MiB\""},
      {"sluice.host_bytes", "\"50%\""},
      {"sluice.durability", "\"power\""},
      {"sluice.io.backend", "\"threads\""},
      {"sluice.io.reads_per_write", "1"},
      {"sluice.commit_every", "3"},
      {"sluice.checkpoint_dir", "\"/elsewhere\""},
      {"sluice.checkpoint_every", "20"},
      {"sluice.keep", "5"},
      {"sluice.strict", "true"},
      {"sluice.approximate", "true"},
      {"sluice.overlap", "false"},
      {"sluice.activations", "\"keep\""},
      {"sluice.micro_batches_per_pass", "1"},
      {"sluice.non_finite", "\"stop\""},
      {"sluice.master", "\"fp32\""},
      {"sluice.moments", "\"bf16\""},
      {"sluice.cache_bytes", "\"50%\""},
      {"activation_checkpointing.cpu_checkpointing", "true"},
      {"sluice.threads", "{\"io\": 2}"},
      {"sluice.threads.compute", "2"},
      {"sluice.threads.optimizer", "2"},
      {"sluice.threads.io", "2"},
      {"sluice.seed", "7"},
      {"steps_per_print", "10"},
  };
  const auto found = kSamples.find(path);
  return found == kSamples.end() ? "" : found->second;
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
    const bool is_compile = path.starts_with("compile.");  // of two switches one is refused
    const JsonText json =
        (is_compile ? JsonText(context_of(path)).set("compile.enabled", "true")
                    : switched_on(context_of(path), path))
            .set(path, info.path == "zero_optimization" ? "true" : other_value(info));
    ASSERT_EQ(shown(problems_of(json)), "") << path;
    EXPECT_THAT(parse(json).notes,
                testing::Contains("mapped: " + path + ": " + std::string(info.note)));
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
