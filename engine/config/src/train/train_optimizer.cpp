#include "train/train_optimizer.hpp"

#include <algorithm>
#include <cctype>

#include "schedule/train_scheduler.hpp"
#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

constexpr std::string_view kOtherOptimizers[] = {
    "adagrad", "adadelta", "adamax", "asgd",    "lbfgs", "lion", "muadam",     "muadamw",  "muon",
    "musgd",   "nadam",    "radam",  "rmsprop", "rprop", "sgd",  "sparseadam", "adafactor"};
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
constexpr std::string_view kOptimizers[] = {"Adam", "AdamW"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
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
    checker.add_note("optimizer.type",
                     quoted(type) + " is approximated by AdamW: " + std::string(other.difference));
    return;
  }
  checker.add_problem("optimizer.type",
                      quoted(type) +
                          " is not supported; \"sluice\": {\"approximate\": true} trains with "
                          "AdamW instead: " +
                          std::string(other.difference));
}

// torch's AdamW has a default of its own.
void read_weight_decay(Checker& checker, OptimizerConfig& optimizer) {
  constexpr const char* kPath = "optimizer.params.weight_decay";
  bool torch_adam = false;
  checker.read("optimizer.params.torch_adam", torch_adam);
  checker.read(kPath, optimizer.weight_decay);
  if (!torch_adam || checker.given(kPath) || optimizer.type != OptimizerType::adamw) return;
  optimizer.weight_decay = 0.01;
  checker.add_note(kPath, "0.01, the default of torch's AdamW, which torch_adam asks for");
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
  } else if (type.empty() && !checker.flag_of("optimizer").empty()) {
    checker.add_note("optimizer.type", "AdamW, since the file has no optimizer");
  } else if (type.empty()) {
    checker.add_problem("optimizer.type", "required; add \"type\": \"AdamW\"");
  } else if (const Approximated* other = find_approximated(type)) {
    approximate(checker, type, *other);
  } else if (contains(kOtherOptimizers, name)) {
    checker.add_problem("optimizer.type",
                        quoted(type) + " is not supported yet; there are Adam and AdamW");
  } else {
    checker.add_problem("optimizer.type", unknown_type("optimizer", type, kOptimizers));
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
  if ((replaced && contains(kOptimizers, optimizer)) ||
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
    checker.add_note("optimizer",
                     "the file has none, since the program that trains makes it: AdamW with its "
                     "defaults, lr 0.001 and weight_decay 0 (or give " +
                         flags_of("optimizer.type") + ", " + flags_of("optimizer.params.lr") +
                         ", " + flags_of("optimizer.params.weight_decay") + ")");
    return optimizer;
  }
  read_optimizer_type(checker, optimizer);
  checker.read("optimizer.params.lr", optimizer.lr);
  read_betas(checker, optimizer);
  checker.read("optimizer.params.eps", optimizer.eps);
  read_weight_decay(checker, optimizer);
  checker.read("optimizer.params.bias_correction", optimizer.bias_correction);
  return optimizer;
}

}  // namespace sluice::config
