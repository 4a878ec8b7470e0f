// config convert: a file of transformers' TrainingArguments, or of Accelerate, as a training
// configuration.

#include <json/reader.h>
#include <json/writer.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "command/commands.hpp"
#include "config/yaml_lines.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/log.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::cli {

namespace {

// The file, the keys of it that have been used, and the configuration that grows from it.
class Conversion {
 public:
  Conversion(const Json::Value& from, std::string path) : from_(from), path_(std::move(path)) {}

  // The value of a key of the file; null when it is absent. It counts as used.
  Json::Value take(const std::string& key) {
    used_.insert(key);
    return from_.get(key, Json::Value());
  }
  // Copies a value that is there.
  void copy(const std::string& key, const std::string& to) {
    const Json::Value value = take(key);
    if (!value.isNull()) set(to, value);
  }
  // A key that gives no value here, for the reason that the documentation has.
  void pass_over(const std::vector<std::string>& keys) { used_.insert(keys.begin(), keys.end()); }

  void set(const std::string& key_path, const Json::Value& value) {
    Json::Value* place = &config;
    std::istringstream names(key_path);
    for (std::string name; std::getline(names, name, '.');) place = &(*place)[name];
    const bool is_open = place->isNull() || *place == "auto" || *place == value;
    if (!is_open) note(key_path + ": the value of the arguments replaces that of \"deepspeed\"");
    *place = value;
  }
  void note(const std::string& line) { notes.push_back(line); }
  [[noreturn]] void fail(const std::string& key, const std::string& why) const {
    throw InvalidArgument(path_ + ": " + key + ": " + why);
  }
  // One note that names every other key with a value that asks for something.
  void note_unused() {
    std::string names;
    for (const std::string& key : from_.getMemberNames()) {
      const Json::Value& value = from_[key];
      const bool asks = !value.isNull() && value != Json::Value(false) &&
                        value != Json::Value("") &&
                        !((value.isObject() || value.isArray()) && value.empty());
      if (asks && used_.count(key) == 0) names += (names.empty() ? "" : ", ") + key;
    }
    if (!names.empty()) note("not carried over: " + names);
  }

  Json::Value config{Json::objectValue};
  std::vector<std::string> notes;

 private:
  const Json::Value& from_;
  const std::string path_;
  std::set<std::string> used_;
};

// The Trainer's schedules as DeepSpeed's, which begin one step later.
void convert_schedule(Conversion& conversion) {
  const Json::Value asked = conversion.take("lr_scheduler_type");
  const std::string type = asked.isNull() ? "linear" : asked.asString();  // the Trainer's default
  const Json::Value warmup = conversion.take("warmup_steps");
  const Json::Value ratio = conversion.take("warmup_ratio");
  const Json::Value steps = conversion.take("max_steps");
  const bool has_steps = steps.isInt64() && steps.asInt64() > 0;
  const Json::Value total = has_steps ? steps : Json::Value("auto");
  if (!warmup.isNull() && !warmup.isInt64())
    conversion.fail("warmup_steps", "expected a whole number");
  std::int64_t warmup_steps = warmup.isInt64() ? warmup.asInt64() : 0;
  if (warmup_steps == 0 && ratio.isNumeric() && ratio.asDouble() > 0) {
    if (!has_steps)
      conversion.fail("warmup_ratio",
                      "needs max_steps, which the file does not have: write warmup_steps instead");
    if (ratio.asDouble() > 1) conversion.fail("warmup_ratio", "expected a number from 0 to 1");
    // Rounded up, as transformers does.
    warmup_steps = static_cast<std::int64_t>(std::ceil(ratio.asDouble() * steps.asDouble()));
  }
  if (has_steps)
    conversion.note("max_steps: give --steps " + steps.asString() + " to sluice train");
  if (type == "constant" && warmup_steps == 0) return;
  if (type == "constant" || type == "constant_with_warmup") {
    conversion.set("scheduler.type", "WarmupLR");
  } else if (type == "linear") {
    conversion.set("scheduler.type", "WarmupDecayLR");
    conversion.set("scheduler.params.warmup_max_lr", "auto");
    conversion.set("scheduler.params.total_num_steps", total);
  } else if (type == "cosine") {
    conversion.set("scheduler.type", "WarmupCosineLR");
    conversion.set("scheduler.params.cos_min_ratio", 0);
    conversion.set("scheduler.params.total_num_steps", total);
  } else {
    conversion.fail("lr_scheduler_type",
                    "\"" + type +
                        "\" has no like here; there are constant, constant_with_warmup, "
                        "linear and cosine");
  }
  const Json::Int64 least = 1;  // counts as 2, DeepSpeed's least
  conversion.set("scheduler.params.warmup_num_steps", std::max<Json::Int64>(least, warmup_steps));
  conversion.set("scheduler.params.warmup_type", "linear");
  conversion.note(
      "scheduler: DeepSpeed's schedule of this shape, which is one step behind the "
      "Trainer's");
}

// The Trainer's name of an optimizer, in ours; empty for one without a like.
std::string optimizer_type(const std::string& name) {
  if (name.empty() || name.rfind("adamw_torch", 0) == 0) return "AdamW";
  if (name == "adamw_hf" || name == "adamw_apex_fused") return "AdamW";
  if (name == "sgd") return "SGD";
  return name == "adagrad" ? "Adagrad" : "";
}

void convert_optimizer(Conversion& conversion) {
  if (conversion.take("adafactor") == Json::Value(true))
    conversion.fail("adafactor", "is not supported; remove it to train with AdamW");
  const std::string optimizer = conversion.take("optim").asString();
  const std::string type = optimizer_type(optimizer);
  if (type.empty())
    conversion.fail("optim", "\"" + optimizer +
                                 "\" is not supported yet; there are AdamW (adamw_torch), sgd and "
                                 "adagrad");
  // DeepSpeed decays all parameters of a file that has an optimizer.
  const bool by_trainer = !conversion.config.isMember("optimizer");
  conversion.set("optimizer.type", type);
  const Json::Value lr = conversion.take("learning_rate");
  conversion.set("optimizer.params.lr", lr.isNull() ? Json::Value(5e-5) : lr);
  const Json::Value beta1 = conversion.take("adam_beta1"), beta2 = conversion.take("adam_beta2");
  const Json::Value epsilon = conversion.take("adam_epsilon");
  if (type == "AdamW" && (!beta1.isNull() || !beta2.isNull())) {
    Json::Value betas(Json::arrayValue);
    betas.append(beta1.isNull() ? Json::Value(0.9) : beta1);
    betas.append(beta2.isNull() ? Json::Value(0.999) : beta2);
    conversion.set("optimizer.params.betas", betas);
  }
  if (type == "AdamW" && !epsilon.isNull()) conversion.set("optimizer.params.eps", epsilon);
  const Json::Value decay = conversion.take("weight_decay");
  if (decay.isNull()) return;
  conversion.set("optimizer.params.weight_decay", decay);
  if (by_trainer && decay.isNumeric() && decay.asDouble() > 0)
    conversion.set("sluice.no_decay", "biases_and_norms");  // as the Trainer makes its groups
}

void convert_data(Conversion& conversion) {
  for (const auto& [from, to] : {std::pair("dataloader_drop_last", "dataloader_drop_last"),
                                 std::pair("tf32", "sluice.tf32")}) {
    const Json::Value value = conversion.take(from);
    if (value.isNull()) continue;
    if (!value.isBool()) conversion.fail(from, "expected true or false");
    conversion.set(to, value);
  }
  const Json::Value epochs = conversion.take("num_train_epochs");
  const Json::Value steps = conversion.take("max_steps");
  if (epochs.isNull() || (steps.isInt64() && steps.asInt64() > 0)) return;
  if (!epochs.isNumeric() || epochs.isBool() || epochs.asDouble() <= 0)
    conversion.fail("num_train_epochs", "expected a number above 0");
  const bool is_whole = epochs.isInt64();
  conversion.note("num_train_epochs: " +
                  (is_whole ? "give --epochs " + std::to_string(epochs.asInt64())
                            : epochs.asString() + " is no whole number of epochs: give --steps") +
                  " to sluice train");
}

void convert_training_arguments(Conversion& conversion) {
  const Json::Value deepspeed = conversion.take("deepspeed");
  if (deepspeed.isObject()) conversion.config = deepspeed;
  if (deepspeed.isString() && !deepspeed.asString().empty())
    conversion.note("deepspeed: " + deepspeed.asString() +
                    " has the sections zero_optimization and aio: add them, or use that file with "
                    "the flags of sluice train");
  const Json::Value micro = conversion.take("per_device_train_batch_size");
  conversion.set("train_micro_batch_size_per_gpu", micro.isNull() ? Json::Value(8) : micro);
  conversion.copy("gradient_accumulation_steps", "gradient_accumulation_steps");
  if (conversion.config.get("train_batch_size", Json::Value()) == "auto")
    conversion.config.removeMember("train_batch_size");
  const Json::Value clipping = conversion.take("max_grad_norm");
  conversion.set("gradient_clipping", clipping.isNull() ? Json::Value(1.0) : clipping);
  for (const char* type : {"bf16", "fp16"}) {
    const Json::Value value = conversion.take(type);
    if (!value.isNull() && !value.isBool()) conversion.fail(type, "expected true or false");
    if (value == Json::Value(true)) conversion.set(std::string(type) + ".enabled", true);
  }
  convert_optimizer(conversion);
  convert_schedule(conversion);
  conversion.copy("seed", "sluice.seed");
  convert_data(conversion);
  const Json::Value logging = conversion.take("logging_steps");
  if (logging.isInt64() && logging.asInt64() > 0) conversion.set("steps_per_print", logging);
  const Json::Value save = conversion.take("save_steps");
  const bool saves = conversion.take("save_strategy") == "steps" && save.isInt64();
  if (const Json::Value out = conversion.take("output_dir"); saves && out.isString()) {
    conversion.set("sluice.checkpoint_dir", out);
    conversion.set("sluice.checkpoint_every", save);
    conversion.copy("save_total_limit", "sluice.keep");
  }
  conversion.note_unused();
}

void convert_accelerate(Conversion& conversion, const std::string& path) {
  const Json::Value section = conversion.take("deepspeed_config");
  const std::string precision = conversion.take("mixed_precision").asString();
  if (precision == "bf16" || precision == "fp16") conversion.set(precision + ".enabled", true);
  if (precision == "fp8")
    conversion.fail("mixed_precision", "fp8 is not supported; there are bf16 and fp16");
  const Json::Value processes = conversion.take("num_processes");
  if (processes.isInt64() && processes.asInt64() > 1)
    conversion.note(
        "num_processes: " + processes.asString() +
        ": start as many ranks (sluice launch --num-gpus N), or raise gradient_accumulation_steps "
        "to keep the batch with one");
  conversion.set("train_micro_batch_size_per_gpu", "auto");
  if (section.isObject()) {
    Conversion inner(section, path);
    if (const Json::Value file = inner.take("deepspeed_config_file"); file.isString())
      inner.fail("deepspeed_config_file",
                 file.asString() + " is the configuration already: give it to --config");
    inner.config = conversion.config;
    inner.copy("gradient_accumulation_steps", "gradient_accumulation_steps");
    inner.copy("gradient_clipping", "gradient_clipping");
    inner.copy("zero_stage", "zero_optimization.stage");
    for (const std::string part : {"optimizer", "param"}) {
      const Json::Value device = inner.take("offload_" + part + "_device");
      const Json::Value nvme = inner.take("offload_" + part + "_nvme_path");
      if (!device.isString() || device == "none") continue;
      inner.set("zero_optimization.offload_" + part + ".device", device);
      if (device == "nvme") inner.set("zero_optimization.offload_" + part + ".nvme_path", nvme);
    }
    inner.pass_over({"zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher"});
    inner.note_unused();
    conversion.config = inner.config;
    conversion.notes.insert(conversion.notes.end(), inner.notes.begin(), inner.notes.end());
  }
  conversion.pass_over({"compute_environment", "debug", "distributed_type", "downcast_bf16",
                        "machine_rank", "main_training_function", "num_machines", "rdzv_backend",
                        "same_network", "use_cpu", "tpu_env"});
  conversion.note_unused();
}

std::string text_of_file(const std::string& path) {
  constexpr std::size_t kMostBytes = 1U << 20U;
  std::string text(kMostBytes + 1, '\0');
  std::ifstream file(path);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  SLUICE_CHECK(text.size() <= kMostBytes,
               path + ": longer than 1 MiB, which no file of arguments is");
  return text;
}

Json::Value parse_arguments(const std::string& text, const std::string& path) {
  Json::CharReaderBuilder with_comments = lenient_json();
  with_comments["rejectDupKeys"] = true;
  std::string why;
  const std::optional<Json::Value> value = JsonReader(with_comments).read(text, &why);
  if (!value || !value->isObject())
    throw InvalidArgument(path + ": not a JSON object" + (why.empty() ? "" : ": " + why));
  return *value;
}

// Fails here rather than in the run; what is "auto" comes from flags.
void check_converted(const std::string& converted, const std::string& path) {
  try {
    config::parse_train_config(
        converted, path,
        {.settings = {{"train_micro_batch_size_per_gpu", "1", "", true},
                      {"optimizer.params.lr", "1e-3", "", true},
                      {"scheduler.params.total_num_steps", "1000", "", true}},
         .has_flags = true});
  } catch (const config::ConfigError& error) {
    // Places in the text that came of it would mislead.
    std::string message;
    for (const config::Problem& problem : error.problems())
      message += (message.empty() ? "" : "\n") + path + ": its value for " + problem.key_path +
                 ": " + problem.message;
    throw InvalidArgument(message);
  }
}

}  // namespace

int run_config_convert(const ConfigConvertArguments& arguments, Session& session) {
  require_file(arguments.path);
  SLUICE_CHECK(arguments.out_path.empty() || !std::filesystem::exists(arguments.out_path),
               "--out: " + arguments.out_path + " exists already; give another name");
  const std::string text = text_of_file(arguments.path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  // A comment begins with a slash, which no line of YAML does.
  const bool is_json = first != std::string::npos && (text[first] == '{' || text[first] == '/');
  const Json::Value from =
      is_json ? parse_arguments(text, arguments.path) : parse_yaml_lines(text, arguments.path);
  for (const char* key : {"base_model", "micro_batch_size", "num_epochs"}) {
    SLUICE_CHECK(
        !from.isMember(key),
        arguments.path + ": " + key +
            " is no key of TrainingArguments or of Accelerate: give the values as flags of "
            "sluice train, with the file that \"deepspeed\" names as --config");
  }
  Conversion conversion(from, arguments.path);
  if (from.isMember("compute_environment") || from.isMember("distributed_type")) {
    convert_accelerate(conversion, arguments.path);
  } else if (from.isMember("learning_rate") || from.isMember("per_device_train_batch_size")) {
    convert_training_arguments(conversion);
  } else {
    throw InvalidArgument(arguments.path +
                          ": neither TrainingArguments (no learning_rate, no "
                          "per_device_train_batch_size) nor Accelerate's file (no "
                          "compute_environment, no distributed_type)");
  }
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "  ";
  writer["precision"] = 15;
  const std::string converted = Json::writeString(writer, conversion.config) + "\n";
  check_converted(converted, arguments.path);
  for (const std::string& note : conversion.notes) log(LogLevel::warn, note);
  if (!arguments.out_path.empty()) {
    write_file(arguments.out_path, converted);
    session.console().print(arguments.out_path + " is written");
  } else if (!session.json()) {
    session.console().print(converted.substr(0, converted.size() - 1));
  }
  Json::Value object(Json::objectValue);
  object["config"] = conversion.config;
  object["notes"] = Json::Value(Json::arrayValue);
  for (const std::string& note : conversion.notes) object["notes"].append(note);
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
