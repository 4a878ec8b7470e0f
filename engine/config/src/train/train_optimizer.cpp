#include "train/train_optimizer.hpp"

#include <algorithm>

#include "schedule/train_scheduler.hpp"
#include "sluice/base/text.hpp"
#include "train/optimizer_types.hpp"

namespace sluice::config {

namespace {

constexpr std::string_view kOtherOptimizers[] = {
    "adadelta", "adamax", "asgd",  "lbfgs",   "muadam", "muadamw",    "muon",
    "musgd",    "nadam",  "radam", "rmsprop", "rprop",  "sparseadam", "adafactor"};
// Optimizers that AdamW may stand for ("sluice": {"approximate": true}), and what AdamW lacks.
struct Approximated {
  std::string_view name;  // lower case
  std::string_view difference;
};
constexpr Approximated kApproximated[] = {
    {"lamb",
     "no trust ratio, which scales each layer's step by the norm of its weights; the learning rate "
     "is usually too large for AdamW"},
    {"onebitlamb",
     "no trust ratio, which scales each layer's step by the norm of its weights, and gradients are "
     "not compressed; the learning rate is usually too large for AdamW"},
    {"onebitadam", "the second moment is not frozen after freeze_step, and nothing is compressed"},
    {"zerooneadam",
     "the second moment is updated in every step, and nothing is compressed or sent less often"}};

// Names that other programs have for AdamW.
constexpr std::string_view kNamesOfAdamW[] = {
    "deepspeed_adam", "deepspeedcpuadam", "cpuadam",       "fusedadam",
    "adamw_hf",       "adamw_apex_fused", "adamw_bnb_8bit"};

void read_betas(Checker& checker, const std::string& key, double& beta1, double& beta2) {
  const Json::Value* betas = checker.find(key);
  if (betas == nullptr) return;
  const auto valid = [](const Json::Value& beta) {
    return beta.isNumeric() && beta.asDouble() >= 0 && beta.asDouble() < 1;
  };
  if (betas->size() != 2 || !valid((*betas)[0U]) || !valid((*betas)[1U])) {
    checker.add_problem(key, "expected two numbers in [0, 1), found " + checker.shown(*betas));
    return;
  }
  beta1 = (*betas)[0U].asDouble();
  beta2 = (*betas)[1U].asDouble();
}

const Approximated* find_approximated(const std::string& type) {
  const std::string name = lower(type);
  const auto found = std::find_if(std::begin(kApproximated), std::end(kApproximated),
                                  [&](const Approximated& other) { return other.name == name; });
  return found == std::end(kApproximated) ? nullptr : found;
}

// AdamW stands for the optimizer, or the message says that it can.
void approximate(Checker& checker, const std::string& type, const Approximated& other) {
  bool approximated = false;
  checker.read("sluice.approximate", approximated);
  if (approximated) {
    checker.add_warning("optimizer.type", quoted(type) + " is approximated by AdamW: " +
                                              std::string(other.difference));
    return;
  }
  checker.add_problem("optimizer.type",
                      quoted(type) +
                          " is not supported; \"sluice\": {\"approximate\": true} trains with "
                          "AdamW instead: " +
                          std::string(other.difference));
}

// torch's AdamW has a default of its own.
void set_default_decay(Checker& checker, OptimizerConfig& optimizer) {
  constexpr const char* kPath = "optimizer.params.weight_decay";
  bool torch_adam = false;
  checker.read("optimizer.params.torch_adam", torch_adam);
  if (!torch_adam || checker.given(kPath) || optimizer.type != OptimizerType::adamw) return;
  optimizer.weight_decay = 0.01;
  checker.add_note(kPath, "0.01, the default of torch's AdamW, which torch_adam asks for");
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const OptimizerKind& kind : optimizer_kinds()) names.push_back(kind.name);
  return names;
}

// Weight decay of the type Adam is decoupled unless "adam_w_mode" is false.
OptimizerType type_of(Checker& checker, OptimizerType asked) {
  bool decoupled = true;
  checker.read("optimizer.params.adam_w_mode", decoupled);
  if (asked == OptimizerType::adam) return decoupled ? OptimizerType::adamw : OptimizerType::adam;
  if (asked == OptimizerType::adamw && !decoupled) {
    checker.add_problem("optimizer.params.adam_w_mode",
                        "false contradicts the type AdamW; write \"type\": \"Adam\" for weight "
                        "decay that is added to the gradient");
  }
  return asked;
}

// Parameters of other optimizers are refused, or ignored where the file's optimizer is replaced.
void refuse_other_params(Checker& checker, OptimizerType type) {
  const std::string section = "optimizer.params";
  for (const KeyInfo& info : key_table()) {
    if (!info.path.starts_with(section + ".")) continue;
    const std::string_view name = info.path.substr(section.size() + 1);
    if (!checker.given(info.path) || checker.wrong(info.path) || has_param(kind_of(type), name))
      continue;
    if (checker.tolerates(section)) {
      checker.add_note(info.path, "no effect, since the optimizer is replaced");
    } else {
      checker.add_problem(
          info.path,
          std::string(name_of(type)) + " has no such parameter; it belongs to " + kinds_with(name));
    }
  }
}

// Returns whether the type is one that trains.
bool read_optimizer_type(Checker& checker, OptimizerConfig& optimizer) {
  if (checker.wrong("optimizer.type")) return false;
  std::string type;
  checker.read("optimizer.type", type);
  if (const OptimizerKind* kind = find_kind(type)) {
    optimizer.type = type_of(checker, kind->type);
    return true;
  }
  const std::vector<std::string_view> names = optimizer_names();
  if (type.empty() && !checker.flag_of("optimizer").empty()) {
    checker.add_note("optimizer.type", "AdamW, since the file has no optimizer");
    return true;
  }
  if (type.empty()) {
    checker.add_problem("optimizer.type", "required; add \"type\": \"AdamW\"");
  } else if (const Approximated* other = find_approximated(type)) {
    approximate(checker, type, *other);
    return checker.tolerates("optimizer.params");
  } else if (contains(kOtherOptimizers, lower(type))) {
    checker.add_problem(
        "optimizer.type",
        quoted(type) + " is not supported yet; there are Adam, AdamW, Adagrad, Lion and SGD");
  } else if (contains(kNamesOfAdamW, lower(type)) || lower(type).starts_with("adamw_torch")) {
    checker.add_problem("optimizer.type",
                        quoted(type) + " is another program's name; write \"AdamW\"");
  } else if (type == "auto") {
    checker.add_problem(
        "optimizer.type",
        "\"auto\" is filled in by no program: write \"AdamW\", or remove the section");
  } else {
    checker.add_problem("optimizer.type", unknown_type("optimizer", type, names));
  }
  return false;
}

// Values that one type has, or whose defaults differ between the types.
void read_values(Checker& checker, OptimizerConfig& optimizer) {
  const std::string params = "optimizer.params.";
  optimizer.lr = kind_of(optimizer.type).lr;
  optimizer.eps = kind_of(optimizer.type).eps;
  OptimizerConfig::visit(optimizer, [&](const std::string& name, auto&... value) {
    if constexpr (sizeof...(value) == 2) {
      read_betas(checker, params + name, value...);
    } else {
      checker.read(params + name, value...);
    }
  });
  set_default_decay(checker, optimizer);
  if (optimizer.nesterov && (optimizer.momentum == 0 || optimizer.dampening != 0) &&
      !checker.wrong(params + "momentum") && !checker.wrong(params + "dampening")) {
    checker.add_problem(params + "nesterov", "needs a momentum above 0 and a dampening of 0");
  }
}

}  // namespace

void set_moot_sections(const JsonDocument& document, Schema& schema) {
  const Json::Value& root = document.root();
  const auto type_of = [&](const char* section) -> std::string {
    const Json::Value& object = root[section];
    if (!object.isObject()) return "";
    return object["type"].isString() ? object["type"].asString() : "";
  };
  const Json::Value& sluice = root["sluice"];
  const bool approximated = sluice.isObject() && sluice["approximate"] == Json::Value(true);
  const std::string optimizer = type_of("optimizer");
  // A flag that names the optimizer replaces that of the file, and leaves its parameters behind.
  const bool replaced = !optimizer.empty() && !document.flag_of(root["optimizer"]["type"]).empty();
  if ((replaced && find_kind(optimizer) != nullptr) ||
      (approximated && find_approximated(optimizer) != nullptr)) {
    schema.tolerated = "optimizer.params";
  } else if (find_approximated(optimizer) != nullptr ||
             contains(kOtherOptimizers, lower(optimizer))) {
    schema.moot.push_back("optimizer.params");
  }
  if (is_other_scheduler(type_of("scheduler"))) schema.moot.push_back("scheduler.params");
}

OptimizerConfig read_optimizer(Checker& checker) {
  OptimizerConfig optimizer;
  if (checker.wrong("optimizer")) return optimizer;
  if (checker.find("optimizer") == nullptr) {
    checker.add_note(
        "optimizer",
        "the file has none, since the program that trains makes it: AdamW with its defaults, lr "
        "0.001 and weight_decay 0" +
            checker.if_flags(" (or give " + flags_of("optimizer.type") + ", " +
                             flags_of("optimizer.params.lr") + ", " +
                             flags_of("optimizer.params.weight_decay") + ")"));
    return optimizer;
  }
  if (read_optimizer_type(checker, optimizer)) refuse_other_params(checker, optimizer.type);
  read_values(checker, optimizer);
  return optimizer;
}

}  // namespace sluice::config
