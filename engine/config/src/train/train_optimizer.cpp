#include "train/train_optimizer.hpp"

#include <algorithm>
#include <cctype>

#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

constexpr std::string_view kOtherOptimizers[] = {
    "adagrad", "adadelta", "adamax", "asgd",  "lamb",       "lbfgs",      "lion",
    "muadam",  "muadamw",  "muon",   "musgd", "nadam",      "onebitadam", "onebitlamb",
    "radam",   "rmsprop",  "rprop",  "sgd",   "zerooneadam"};
constexpr std::string_view kOtherSchedulers[] = {"OneCycle", "LRRangeTest"};
constexpr std::string_view kOptimizers[] = {"Adam", "AdamW"};
constexpr std::string_view kSchedulers[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string unknown_type(const std::string& kind, const std::string& type,
                         std::span<const std::string_view> known) {
  const std::string near = nearest_name(type, known);
  std::string names;
  for (const std::string_view name : known)
    names += (names.empty() ? "" : ", ") + std::string(name);
  return "unknown " + kind + " " + quoted(type) +
         (near.empty() ? "" : "; did you mean \"" + near + "\"?") + " (" + names + ")";
}

void read_betas(Checker& checker, OptimizerConfig& optimizer) {
  const Json::Value* betas = checker.find("optimizer.params.betas");
  if (betas == nullptr) return;
  const auto valid = [](const Json::Value& beta) {
    return beta.isNumeric() && beta.asDouble() >= 0 && beta.asDouble() < 1;
  };
  if (betas->size() != 2 || !valid((*betas)[0U]) || !valid((*betas)[1U])) {
    checker.add_problem("optimizer.params.betas",
                        "expected two numbers in [0, 1), found " + checker.shown(*betas));
    return;
  }
  optimizer.beta1 = (*betas)[0U].asDouble();
  optimizer.beta2 = (*betas)[1U].asDouble();
}

void read_optimizer_type(Checker& checker, OptimizerConfig& optimizer) {
  if (checker.wrong("optimizer.type")) return;
  std::string type;
  checker.read("optimizer.type", type);
  bool decoupled = true;
  checker.read("optimizer.params.adam_w_mode", decoupled);
  const std::string name = lower(type);
  if (name == "adam") {
    optimizer.type = decoupled ? OptimizerType::adamw : OptimizerType::adam;
  } else if (name == "adamw") {
    optimizer.type = OptimizerType::adamw;
    if (!decoupled) {
      checker.add_problem("optimizer.params.adam_w_mode",
                          "false contradicts the type AdamW; write \"type\": \"Adam\" for weight "
                          "decay that is added to the gradient");
    }
  } else if (type.empty()) {
    checker.add_problem("optimizer.type", "required; add \"type\": \"AdamW\"");
  } else if (contains(kOtherOptimizers, name)) {
    checker.add_problem("optimizer.type",
                        quoted(type) + " is not supported yet; there are Adam and AdamW");
  } else {
    checker.add_problem("optimizer.type", unknown_type("optimizer", type, kOptimizers));
  }
}

// The keys of scheduler.params that a type reads.
std::vector<std::string_view> parameters_of(std::string_view type) {
  if (type == "WarmupLR") {
    return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"};
  }
  if (type == "WarmupDecayLR") {
    return {"total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"};
  }
  return {"total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio",
          "warmup_type"};
}

std::string param(std::string_view name) {
  return "scheduler.params." + std::string(name);
}

void refuse_other_parameters(Checker& checker, const std::string& type) {
  const auto own = parameters_of(type);
  for (const std::string_view name :
       {"total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type",
        "warmup_min_ratio", "cos_min_ratio"}) {
    if (checker.find(param(name)) != nullptr && !contains(own, name)) {
      checker.add_problem(param(name), type + " has no such parameter");
    }
  }
}

WarmupType read_warmup_type(const Checker& checker) {
  std::string type = "log";
  checker.read(param("warmup_type"), type);
  return type == "log" ? WarmupType::log : WarmupType::linear;
}

std::int64_t read_total_steps(Checker& checker, const std::string& type,
                              std::int64_t warmup_num_steps) {
  const std::string path = param("total_num_steps");
  std::int64_t total = 0;
  checker.read(path, total);
  if (checker.find(path) == nullptr && !checker.wrong(path)) {
    checker.add_problem(path, "required by " + type + "; add \"total_num_steps\": STEPS");
  } else if (total < warmup_num_steps && !checker.wrong(path)) {
    checker.add_note(path, std::to_string(total) + " is less than warmup_num_steps, " +
                               std::to_string(warmup_num_steps) + ": the warm-up is all there is");
  }
  return total;
}

WarmupLR read_warmup(const Checker& checker) {
  WarmupLR s;
  checker.read(param("warmup_min_lr"), s.warmup_min_lr);
  checker.read(param("warmup_max_lr"), s.warmup_max_lr);
  checker.read(param("warmup_num_steps"), s.warmup_num_steps);
  s.warmup_type = read_warmup_type(checker);
  return s;
}

WarmupDecayLR read_warmup_decay(Checker& checker) {
  WarmupDecayLR s;
  checker.read(param("warmup_min_lr"), s.warmup_min_lr);
  checker.read(param("warmup_max_lr"), s.warmup_max_lr);
  checker.read(param("warmup_num_steps"), s.warmup_num_steps);
  s.warmup_type = read_warmup_type(checker);
  s.total_num_steps = read_total_steps(checker, "WarmupDecayLR", s.warmup_num_steps);
  return s;
}

WarmupCosineLR read_warmup_cosine(Checker& checker) {
  WarmupCosineLR s;
  checker.read(param("warmup_min_ratio"), s.warmup_min_ratio);
  checker.read(param("warmup_num_steps"), s.warmup_num_steps);
  checker.read(param("cos_min_ratio"), s.cos_min_ratio);
  s.warmup_type = read_warmup_type(checker);
  s.total_num_steps = read_total_steps(checker, "WarmupCosineLR", s.warmup_num_steps);
  return s;
}

}  // namespace

OptimizerConfig read_optimizer(Checker& checker) {
  OptimizerConfig optimizer;
  if (checker.wrong("optimizer")) return optimizer;
  if (checker.find("optimizer") == nullptr) {
    checker.add_problem("optimizer",
                        "an optimizer is required; add \"optimizer\": {\"type\": \"AdamW\", "
                        "\"params\": {\"lr\": 1e-3}}");
    return optimizer;
  }
  read_optimizer_type(checker, optimizer);
  checker.read("optimizer.params.lr", optimizer.lr);
  read_betas(checker, optimizer);
  checker.read("optimizer.params.eps", optimizer.eps);
  checker.read("optimizer.params.weight_decay", optimizer.weight_decay);
  checker.read("optimizer.params.bias_correction", optimizer.bias_correction);
  return optimizer;
}

SchedulerConfig read_scheduler(Checker& checker) {
  if (checker.find("scheduler") == nullptr || checker.wrong("scheduler.type")) return {};
  std::string type;
  checker.read("scheduler.type", type);
  if (contains(kSchedulers, type)) refuse_other_parameters(checker, type);
  if (type == "WarmupLR") return read_warmup(checker);
  if (type == "WarmupDecayLR") return read_warmup_decay(checker);
  if (type == "WarmupCosineLR") return read_warmup_cosine(checker);
  if (type.empty()) {
    checker.add_problem("scheduler.type", "required; add for example \"type\": \"WarmupLR\"");
  } else if (contains(kOtherSchedulers, type)) {
    checker.add_problem("scheduler.type", quoted(type) +
                                              " is not supported yet; there are WarmupLR, "
                                              "WarmupDecayLR and WarmupCosineLR");
  } else {
    checker.add_problem("scheduler.type", unknown_type("scheduler", type, kSchedulers));
  }
  return {};
}

}  // namespace sluice::config
